"""What an agent's parent selection and its ensembles see of all generations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.loop.generation.generation_view import GenerationView, add_figures
from hyperruntime.loop.hyperagents.domains import repository_domain
from hyperruntime.loop.hyperagents.ensemble import AGENT_ARCHIVE_FOLDER, AGENT_ARCHIVE_VIEW, prepare_agent_archive
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationMark, GenerationRecord, record_to_json

DOMAIN = "paper_review"
SCORES = {DOMAIN: {"train": 0.125, "val": 0.25, "test": 0.0625}}
TEST_ONLY, SELECTED_ONLY = "0.0625", "0.25"


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
    metadata = {"current_genid": genid, "valid_parent": True, "hyperruntime": record_to_json(record)}
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


def test_a_meta_agent_that_evolves_the_ensemble_sees_only_training_scores_of_the_other_run(
    layout: Layout, tmp_path: Path
) -> None:
    other = Layout(tmp_path / "generate_other")
    other.root.mkdir()
    finish(Archive(other), other, "initial")
    options = GenerateOptions(domains=DOMAIN, optimize_option="only_ensemble", agent_archive_path=str(other.root))
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
