"""What an agent's parent selection and its ensembles see of all generations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.generation.generation_view import GenerationView, add_figures
from hyperruntime.loop.generation.publish import publish
from hyperruntime.loop.hyperagents.adapter import HyperAgentsContract, RunOverview
from hyperruntime.loop.hyperagents.domains import repository_domain
from hyperruntime.loop.hyperagents.ensemble import (
    AGENT_ARCHIVE_FOLDER,
    AGENT_ARCHIVE_VIEW,
    prepare_agent_archive,
)
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationMark, GenerationRecord, record_to_json
from tests.doubles.fake_runtime import make_agent_repository

DOMAIN = "paper_review"
KEY = "sk-of-the-host"
SCORES = {DOMAIN: {"train": 0.125, "val": 0.25, "test": 0.0625}}
TEST_ONLY, SELECTED_ONLY = "0.0625", "0.25"
HOST = "/home/somebody/outputs/generate_old"


def finish(archive: Archive, layout: Layout, genid: int | str) -> None:
    """Add a generation with all its files to a run."""
    record = GenerationRecord(
        genid=genid,
        parent=None if genid == "initial" else "initial",
        score=0.25,
        scores=SCORES,
        valid_parent=True,
        detail="it failed at question 77",
    )
    folder = layout.generation(genid)
    for split, score in SCORES[DOMAIN].items():
        name = f"{DOMAIN}_eval" + ("" if split == "train" else f"_{split}")
        (folder / name).mkdir(parents=True)
        (folder / name / "report.json").write_text(json.dumps({"overall_accuracy": score}))
        (folder / f"report_ensemble_{DOMAIN}_{split}.json").write_text(
            json.dumps({"overall_accuracy": score})
        )
        table = f"question_id,outcome,prediction\n{split}-1,secret,accept\n"
        (folder / f"predictions_ensemble_{DOMAIN}_{split}.csv").write_text(table)
    metadata = {
        "gen_output_dir": f"{HOST}/gen_{genid}",
        "current_genid": genid,
        "agent_archive_path": f"{HOST}/other",
        "prev_patch_files": [f"{HOST}/meta_patch_files/model_patch_0.diff"],
        "curr_patch_files": [f"{HOST}/gen_{genid}/agent_output/model_patch.diff"],
        "valid_parent": True,
        "hyperruntime": record_to_json(record),
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    archive.add(record)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(tmp_path / "generate_x")
    found.root.mkdir()
    return found


def standings_of(layout: Layout) -> GenerationView:
    return GenerationView(layout, "standings", (repository_domain(DOMAIN),), add_figures)


def listed(standings: GenerationView) -> Any:
    return json.loads((standings.folder / "archive.jsonl").read_text())


def text_below(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def test_a_selection_does_not_see_test_scores_or_failure_details(layout: Layout) -> None:
    archive, standings = Archive(layout), standings_of(layout)
    finish(archive, layout, "initial")
    standings.refresh(archive)
    archive.mark(GenerationMark(kind="no-selection", genid="initial", by=1, detail="x"))
    standings.refresh(archive)
    shown = text_below(standings.folder)
    assert SELECTED_ONLY in shown
    assert TEST_ONLY not in shown
    assert "question 77" not in shown
    assert HOST not in shown
    ensemble = standings.folder / f"gen_initial/report_ensemble_{DOMAIN}_val.json"
    assert json.loads(ensemble.read_text()) == {"overall_accuracy": 0.25}


def test_meta_agents_see_an_overview_of_training_without_keys_and_host_paths(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    domains, adapter = (repository_domain(DOMAIN),), HyperAgentsContract()
    options = GenerateOptions(
        domains=DOMAIN, run_id="x", agent=HOST, output_dir_parent=HOST, copy_root_dir=HOST, gateway=f"{HOST}/{KEY}",
        meta_patch_files=(f"{HOST}/a.diff",), agent_archive_path=HOST, optimize_option="only_ensemble", seed=3,
    )  # fmt: skip
    archive, store = Archive(layout), RepositoryStore(tmp_path / "repository.git")
    commit = store.add_repository(make_agent_repository(tmp_path / "checkout"))
    layout.view.mkdir()
    layout.work.mkdir()
    for _ in range(2):  # a start and a resume
        overview = RunOverview(options, layout, domains)
        for genid in [number for number in ("initial", 1) if number not in archive]:
            overview.refresh(archive)
            finish(archive, layout, genid)
            publish(layout, attrs.evolve(archive[genid], commit=commit), domains, adapter, store)
        overview.refresh(archive)
    lines = [json.loads(line) for line in (layout.view / "archive.jsonl").read_text().splitlines()]
    assert lines == [
        {"current_genid": "initial", "archive": ["initial"]},
        {"current_genid": 1, "archive": ["initial", 1]},
    ]
    log = (layout.view / "generate_loop.log").read_text().splitlines()
    assert len(log) == 2
    assert log[0].startswith(f"Args: domains=['{DOMAIN}'], run_id=x, max_generation=10, ")
    assert log[0].endswith("meta_patch_files=['meta_patch_files/model_patch_0.diff'], "
                           "agent_archive_path=/tmp/agent_archive")  # fmt: skip
    progress = (layout.view / f"progress_info_{DOMAIN}_train_max.txt").read_text()
    assert "best from generation initial: 0.125000" in progress
    assert (layout.view / f"gen_1/report_ensemble_{DOMAIN}_train.json").is_file()
    table = (layout.view / f"gen_1/predictions_ensemble_{DOMAIN}_train.csv").read_text()
    assert table == "question_id,outcome,prediction\ntrain-1,,accept\n"
    metadata = json.loads((layout.view / "gen_1/metadata.json").read_text())
    assert metadata["prev_patch_files"] == ["meta_patch_files/model_patch_0.diff"]
    shown = text_below(layout.view)
    for hidden in (SELECTED_ONLY, TEST_ONLY, HOST, KEY, str(layout.root), "_val", "_test"):
        assert hidden not in shown.replace("eval_test", ""), hidden
    names = [path.name for path in layout.view.rglob("*")]
    assert not [name for name in names if "_val" in name or "_test" in name]


def test_a_meta_agent_that_evolves_the_ensemble_sees_only_training_scores_of_the_other_run(
    layout: Layout, tmp_path: Path
) -> None:
    other = Layout(tmp_path / "generate_other")
    other.root.mkdir()
    finish(Archive(other), other, "initial")
    options = GenerateOptions(
        domains=DOMAIN, optimize_option="only_ensemble", agent_archive_path=str(other.root)
    )
    prepare_agent_archive(options, (repository_domain(DOMAIN),), layout)
    shown = text_below(layout.root / AGENT_ARCHIVE_VIEW)
    assert "0.125" in shown
    assert SELECTED_ONLY not in shown
    assert TEST_ONLY not in shown
    assert SELECTED_ONLY in text_below(layout.root / AGENT_ARCHIVE_FOLDER)


def test_the_list_of_generations_grows_and_is_repaired_by_the_next_process(layout: Layout) -> None:
    archive, standings = Archive(layout), standings_of(layout)
    for genid in ("initial", 1, 2, 3):
        finish(archive, layout, genid)
        if genid != 2:
            standings.refresh(archive)
            standings.refresh(archive)
            ids = [record.genid for record in archive]
            assert listed(standings) == {"current_genid": genid, "archive": ids}
    path = standings.folder / "archive.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    again = standings_of(layout)
    again.refresh(archive)
    assert listed(again) == {"current_genid": 3, "archive": ["initial", 1, 2, 3]}
    finish(archive, layout, 4)
    again.refresh(archive)
    assert listed(again) == {"current_genid": 4, "archive": ["initial", 1, 2, 3, 4]}
