"""The import of a run that HyperAgents wrote: its scores, its states and its unfinished files."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest

from hyperruntime.cli import main
from hyperruntime.errors import ArchiveError, SpecError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.generation.publish import publish_missing
from hyperruntime.loop.hyperagents.adapter import HyperAgentsContract
from hyperruntime.loop.run.import_hyperagents import import_run
from hyperruntime.loop.run_files.archive import Archive, load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.runs.lock import RunLock
from tests.original_run import ELSEWHERE, Old, OriginalRun


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> OriginalRun:
    """Return a run of three generations: two with full evaluations, one with only the first stage;
    do not change it.
    """
    path = tmp_path_factory.mktemp("original") / "generate_old"
    run = OriginalRun(path, parent_selection="best", skip_staged_eval=True)
    run.add(1, Old(keyword="novel", train=0.6, val=0.5))
    run.add(2, Old(parent=1, keyword="clear", train=0.7, val=0.8))
    run.add(3, Old(keyword="thorough", train=0.9, val=0.9, full=False))
    return run


@pytest.fixture
def old(made_once: OriginalRun, tmp_path: Path) -> OriginalRun:
    """Return a copy of that run."""
    run = copy.deepcopy(made_once)
    run.path = Path(shutil.copytree(made_once.path, tmp_path / made_once.path.name, symlinks=True))
    run.repository = run.path / made_once.repository.relative_to(made_once.path)
    return run


def imported(old: OriginalRun) -> tuple[dict[object, GenerationRecord], RepositoryStore]:
    assert import_run(old.path)
    view = load_run(old.path)
    return {record.genid: record for record in view.generations}, RepositoryStore(
        Layout(old.path).repository
    )


def keywords(store: RepositoryStore, record: GenerationRecord) -> list[str]:
    return (store.read_file(record.commit, "keywords.txt") or b"").decode().split()


def test_scores_come_from_the_reports_with_the_scale_of_hyperagents(old: OriginalRun) -> None:
    records, _ = imported(old)
    assert list(records) == ["initial", 1, 2, 3]
    assert [records[n].score for n in (1, 2)] == [0.5, 0.8]
    assert records["initial"].scores == {
        "paper_review": {"train": pytest.approx(0.04), "val": pytest.approx(0.03)}
    }
    assert records[3].score == pytest.approx(0.09)
    assert [record.staged_only for record in records.values()] == [True, False, False, True]
    assert all(record.valid_parent for record in records.values())


def test_a_better_ensemble_score_replaces_the_score(old: OriginalRun) -> None:
    (old.path / "gen_1" / "report_ensemble_paper_review_val.json").write_text(
        '{"overall_accuracy": 0.7}'
    )
    (old.path / "gen_2" / "report_ensemble_paper_review_val.json").write_text(
        '{"overall_accuracy": 0.7}'
    )
    records, _ = imported(old)
    assert [records[n].score for n in (1, 2)] == [0.7, 0.8]


def test_a_run_that_evolved_only_the_ensemble_has_the_scores_of_ensembles(tmp_path: Path) -> None:
    """In such a run no full evaluation of an agent is recorded, and ensembles answer all tasks."""
    other = "/home/somebody/outputs/generate_other"
    old = OriginalRun(
        tmp_path / "generate_old", optimize_option="only_ensemble", agent_archive_path=other
    )
    old.add(1, Old(train=None, val=None, full=False, metadata={"optimize_option": "only_ensemble"}))
    for name, score in (("initial", 0.2), (1, 0.5)):
        report = old.path / f"gen_{name}" / "report_ensemble_paper_review_val.json"
        report.write_text(json.dumps({"overall_accuracy": score}))
    records, _ = imported(old)
    assert [record.score for record in records.values()] == [0.2, 0.5]


def test_each_state_equals_its_replayed_lineage(old: OriginalRun) -> None:
    records, store = imported(old)
    assert keywords(store, records[2])[-2:] == ["novel", "clear"]
    assert keywords(store, records[3])[-1:] == ["thorough"]
    assert keywords(store, records["initial"]) == keywords(store, records[1])[:-1]
    assert [record.parent for record in records.values()] == [None, "initial", 1, "initial"]


def test_no_key_and_no_label_enters_a_state(old: OriginalRun) -> None:
    records, store = imported(old)
    assert store.read_file(records[2].commit, ".env") is None
    shown = store.read_file(records[2].commit, "domains/paper_review/dataset_filtered_100_val.csv")
    kept = (old.path / "reference/domains/paper_review/dataset_filtered_100_val.csv").read_text()
    assert shown is not None
    assert "accept" in kept
    assert "accept" not in shown.decode()


def test_the_options_are_taken_from_the_log(old: OriginalRun) -> None:
    import_run(old.path)
    view = load_run(old.path)
    assert (view.options.domains, view.options.contract) == (("paper_review",), "hyperagents")
    assert (view.options.parent_selection, view.options.skip_staged_eval) == ("best", True)
    assert (view.options.max_generation, view.options.run_id) == (3, "old")
    assert view.state == "finished"


def test_the_import_changes_no_original_file_and_happens_once(old: OriginalRun) -> None:
    names = [path for path in old.path.rglob("*") if path.is_file() and ".git" not in path.parts]
    before = {path: path.read_bytes() for path in names}
    import_run(old.path)
    assert {path: path.read_bytes() for path in names} == before
    assert import_run(old.path) is False


def test_a_truncated_line_and_an_unfinished_generation_are_repaired(old: OriginalRun) -> None:
    old.tear()
    half = old.add(4, Old(keyword="half"), listed=False)
    (half / "metadata.json").unlink()
    records, _ = imported(old)
    assert list(records) == ["initial", 1, 2, 3]
    assert not half.exists()
    assert (old.path / "left_over" / "gen_4" / "agent_output" / "model_patch.diff").exists()
    last = json.loads((old.path / "archive.jsonl").read_text().splitlines()[-1])
    assert last["archive"] == ["initial", 1, 2, 3]


@pytest.mark.parametrize(
    "log", ["as it is", "of a resume that took the patched state", "gone", "of a detached head"]
)
def test_the_root_commit_is_found_although_the_work_tree_is_patched(
    old: OriginalRun, log: str
) -> None:
    old.leave_patched("left behind")
    path = old.path / "generate_loop.log"
    if log == "of a resume that took the patched state":
        old.log({"domains": ["paper_review"], "root_commit": old.git("rev-parse", "HEAD")})
    elif log == "gone":
        path.unlink()
    elif log == "of a detached head":
        path.write_text(path.read_text().replace(old.root[:7], "HEAD"))
    records, store = imported(old)
    assert "left" not in keywords(store, records["initial"])
    assert store.read_file(records["initial"].commit, "README.md") == b"a nonsense commit message\n"


def test_code_that_an_agent_put_into_the_git_directory_does_not_run(
    old: OriginalRun, tmp_path: Path
) -> None:
    marker = tmp_path / "was run"
    config = old.repository / ".git" / "config"
    lines = (
        f'[core]\n\tfsmonitor = "touch \'{marker}\'"\n[filter "x"]\n\tsmudge = "touch '
        f"'{marker}'\"\n"
    )
    config.write_text(config.read_text() + lines)
    (old.repository / ".git" / "info" / "attributes").write_text("* filter=x\n")
    (old.repository / ".git" / "hooks").mkdir(exist_ok=True)
    hook = old.repository / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch '{marker}'\n")
    hook.chmod(0o755)
    imported(old)
    assert not marker.exists()


def test_links_that_agents_left_do_not_expose_host_files(old: OriginalRun, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "secret.csv").write_text("a,secret-of-the-host\n")
    output, evaluation = old.path / "gen_1/agent_output", old.path / "gen_1/paper_review_eval"
    (output / "one").symlink_to(tmp_path / "host" / "secret.csv")
    (output / "all").symlink_to(tmp_path / "host")
    (evaluation / "table.csv").symlink_to(tmp_path / "host" / "secret.csv")
    import_run(old.path)
    layout = Layout(old.path)
    contract = HyperAgentsContract()
    domains, store = contract.load_domains(["paper_review"]), RepositoryStore(layout.repository)
    publish_missing(layout, Archive.load(layout), domains, contract, store)
    shown = [path for path in (old.path / "view/gen_1").rglob("*") if path.is_file()]
    assert any(path.name == "model_patch.diff" for path in shown)
    assert not any("secret-of-the-host" in path.read_text() for path in shown)
    assert (old.path / "left_over/gen_1/agent_output/one").is_symlink()


def test_setuid_and_setgid_bits_are_removed_from_files_of_agents(old: OriginalRun) -> None:
    path = old.path / "gen_1/agent_output/deep/shell"
    path.parent.mkdir(parents=True)
    path.touch()
    path.chmod(0o6755)
    path.parent.chmod(0o2777)
    imported(old)
    assert (path.stat().st_mode & 0o7777, path.parent.stat().st_mode & 0o7777) == (0o755, 0o777)


def test_failures_are_classified_and_are_never_valid_parents(tmp_path: Path) -> None:
    run = OriginalRun(tmp_path / "generate_old")
    failed = {"run_eval": False, "valid_parent": False}
    run.add(
        1,
        Old(keyword=None, train=None, val=None, metadata={**failed, "parent_agent_success": False}),
    )
    run.add(2, Old(keyword=None, train=None, val=None, metadata=failed))
    run.add(3, Old(train=None, val=None, metadata=failed))
    run.add(4, Old(patch="diff --git a/keywords.txt b/keywords.txt\n--- a/keywords.txt\n+++ b/keywords.txt\n"
                         "@@ -1 +1 @@\n-not there\n+new\n"))  # fmt: skip
    run.add(5, Old(parent=4))
    run.add(6, Old(metadata={"valid_parent": False, "can_select_next_parent": False}))
    records, _ = imported(run)
    assert [record.failure for record in records.values()] == [
        None, "agent", "empty-diff", "evaluation", "refused-patch", "refused-patch", None,
    ]  # fmt: skip
    assert [record.valid_parent for record in records.values()] == [
        True,
        False,
        False,
        False,
        False,
        False,
        False,
    ]
    archive = Archive.load(Layout(run.path))
    assert [archive.can_select(genid) for genid in ("initial", 5, 6)] == [True, True, False]


def test_binary_bytecode_entries_of_a_patch_are_skipped(tmp_path: Path) -> None:
    run = OriginalRun(tmp_path / "generate_old")
    binary = (
        "diff --git a/__pycache__/x.pyc b/__pycache__/x.pyc\nnew file mode 100644\nindex "
        "0000000..1234567\nBinary files /dev/null and b/__pycache__/x.pyc differ\n"
    )
    folder = run.add(1, Old(keyword="novel"))
    patch = folder / "agent_output" / "model_patch.diff"
    patch.write_text(binary + patch.read_text())
    records, store = imported(run)
    assert records[1].failure is None
    assert keywords(store, records[1])[-1] == "novel"


def test_a_run_that_began_with_meta_patches_keeps_them_in_generation_0(tmp_path: Path) -> None:
    run = OriginalRun(tmp_path / "generate_old", meta_patch_files=["/elsewhere/model_patch.diff"])
    run.begin_with("brought along")
    run.add(1, Old(parent=0, keyword="novel"))
    records, store = imported(run)
    assert list(records) == [0, 1]
    assert keywords(store, records[0])[-2:] == ["brought", "along"]
    assert keywords(store, records[1])[-3:] == ["brought", "along", "novel"]
    assert load_run(run.path).options.first_genid == 0
    assert records[0].valid_parent


def test_an_import_that_was_killed_is_repeated(old: OriginalRun) -> None:
    import_run(old.path)
    layout = Layout(old.path)
    layout.run.unlink()
    layout.journal.write_bytes(layout.journal.read_bytes()[:-40])
    shutil.rmtree(layout.repository)
    records, store = imported(old)
    assert list(records) == ["initial", 1, 2, 3]
    assert keywords(store, records[2])[-2:] == ["novel", "clear"]


def test_an_imported_run_can_be_moved(old: OriginalRun, tmp_path: Path) -> None:
    import_run(old.path)
    moved = tmp_path / "other" / "generate_old"
    moved.parent.mkdir()
    old.path.rename(moved)
    assert [record.genid for record in load_run(moved).generations] == ["initial", 1, 2, 3]
    assert ELSEWHERE not in (moved / "run.json").read_text()


def test_a_run_that_another_process_owns_is_not_imported(old: OriginalRun) -> None:
    with RunLock(old.path):
        assert main(["resume", str(old.path)]) == 2
    assert not (old.path / "run.json").exists()


def test_a_run_that_cannot_be_imported_raises_an_error_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_run(tmp_path) is False
    empty = OriginalRun(tmp_path / "generate_empty")
    (empty.path / "archive.jsonl").write_text("{torn")
    with pytest.raises(ArchiveError, match="lists no generation"):
        import_run(empty.path)
    broken = OriginalRun(tmp_path / "generate_broken")
    shutil.rmtree(broken.repository / ".git" / "objects")
    (broken.repository / ".git" / "objects").mkdir()
    with pytest.raises(ArchiveError, match="cannot be read"):
        import_run(broken.path)
    with pytest.raises(SpecError, match="polyglot"):
        import_run(
            OriginalRun(tmp_path / "generate_poly", domains=["paper_review", "polyglot"]).path
        )
    assert main(["status", str(empty.path)]) == 2
    assert "hyperrun resume" in capsys.readouterr().err
