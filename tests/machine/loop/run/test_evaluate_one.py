"""Work on one generation: evaluate it outside the run, or export it as a repository."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperruntime.cli import main
from hyperruntime.errors import (
    ArchiveError,
    EngineUnavailableError,
    RepositoryError,
    RunError,
    SpecError,
)
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.run.one_generation import evaluate_generation, export_generation
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.spec import ContainerSpec
from tests.doubles.fake_runtime import FakeRuntime


def files_of(root: Path) -> dict[str, int]:
    """Return each file of a run and its modification time; leave out the evaluations of single
    generations.
    """
    found = (
        path
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] != "evaluations"
    )
    return {str(path): path.stat().st_mtime_ns for path in found}


def git(where: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", where, *args], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_an_evaluation_has_its_own_folder_and_changes_no_file_of_the_run(finished: Path) -> None:
    before, runtime = files_of(finished), FakeRuntime()
    (made,) = evaluate_generation(runtime, finished, 2, split="val")
    assert files_of(finished) == before
    assert runtime.started == 1
    assert runtime.open == []
    assert not made.known
    assert made.tasks["circle_packing"] > 1
    folder = Path(made.path)
    assert folder == finished / "evaluations" / "gen_2_val_0"
    report = json.loads((folder / "circle_packing_eval_val" / "report.json").read_text())
    assert report["total"] == made.tasks["circle_packing"]
    assert report["score"] == made.score
    assert sorted(path.name for path in folder.iterdir()) == [
        "circle_packing_eval_val",
        "evaluation.json",
        "generate.log",
    ]
    assert sorted(
        path.name for path in folder.parent.iterdir() if not path.name.endswith(".lock")
    ) == ["gen_2_val_0"]


def test_an_existing_evaluation_is_read_and_not_repeated(finished: Path) -> None:
    first = evaluate_generation(FakeRuntime(), finished, 2, split="val", samples=1)
    runtime = FakeRuntime()
    again = evaluate_generation(runtime, finished, 2, split="val", samples=1, repeat=2)
    assert runtime.started == 1
    assert [one.known for one in again] == [True, False]
    assert (again[0].score, again[0].path) == (first[0].score, first[0].path)
    assert [Path(one.path).name for one in again] == ["gen_2_val_1_0", "gen_2_val_1_1"]
    assert {one.tasks["circle_packing"] for one in again} == {1}


def test_an_evaluation_works_while_another_process_owns_the_run(finished: Path) -> None:
    from hyperruntime.runs.lock import RunLock

    with RunLock(finished):
        assert (
            evaluate_generation(FakeRuntime(), finished, "initial", split="val", samples=1)[0].score
            > 0
        )


def test_agents_do_not_see_evaluations_and_a_resume_keeps_them(finished: Path) -> None:
    (made,) = evaluate_generation(FakeRuntime(), finished, "best", split="val", samples=1)
    again = resume_run(FakeRuntime(), plan_resume(finished, max_generation=4))
    assert again.generations[-1].failure is None
    assert (Path(made.path) / "evaluation.json").is_file()
    assert not [path for path in (finished / "view").rglob("*") if "_val" in path.name]


def test_an_engine_failure_is_retried_before_the_evaluation_fails(finished: Path) -> None:
    def flaky(errors: int) -> FakeRuntime:
        left = iter([EngineUnavailableError("fake", "flaky")] * errors)

        def start(spec: ContainerSpec) -> None:
            if error := next(left, None):
                raise error

        return FakeRuntime(before_start=start)

    with pytest.raises(RunError, match=r"could not be evaluated: .*flaky"):
        evaluate_generation(flaky(99), finished, 1, split="val", samples=1)
    assert evaluate_generation(flaky(2), finished, 1, split="val", samples=1)[0].score > 0


def test_an_unknown_split_or_generation_or_a_generation_without_state_is_rejected(
    finished: Path,
) -> None:
    with pytest.raises(SpecError, match="circle_packing has only train, val, test"):
        evaluate_generation(FakeRuntime(), finished, 1, split="other")
    with pytest.raises(ArchiveError, match=r"no finished generation 9; it has: initial, 1, 2, 3"):
        evaluate_generation(FakeRuntime(), finished, 9, split="val")
    with pytest.raises(
        ArchiveError, match=r"generation 3 has no state of its own, because it failed \(agent\)"
    ):
        evaluate_generation(FakeRuntime(), finished, 3, split="val")


def test_an_export_is_a_clean_repository_with_a_commit_per_generation(
    run: Callable[..., RunSummary], finished: Path, tmp_path: Path
) -> None:
    target = tmp_path / "exported to" / "an agent's copy"
    before = files_of(finished)
    made = export_generation(finished, 2, target)
    assert files_of(finished) == before
    assert made.lineage == ("initial", 1, 2)
    assert git(target, "status", "--porcelain") == ""
    assert git(target, "fsck", "--strict") == ""
    assert git(target, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    subjects = git(target, "log", "--reverse", "--format=%s").splitlines()
    assert subjects == [
        f"Generation {record.genid}: score {record.score:.4f}"
        for record in load_run(finished).generations[:3]
    ]
    assert (target / "it's new.txt").read_bytes() == b"x\r\n"
    store, records = RepositoryStore(finished / "repository.git"), load_run(finished).generations
    patches = [
        (finished / f"gen_{number}" / "agent_output" / "model_patch.diff").read_bytes()
        for number in (1, 2)
    ]
    assert git(target, "rev-parse", "HEAD^{tree}") == store.replay(records[0].commit, patches)
    assert git(target, "rev-parse", "HEAD~2^{tree}") == store.tree(records[0].commit)
    again = run(agent=str(target), max_generation=0, run_id="again")
    assert again.generations[0].score == records[2].score


def test_two_exports_of_one_generation_have_the_same_commit(finished: Path, tmp_path: Path) -> None:
    one, two = (export_generation(finished, "best", tmp_path / name) for name in ("one", "two"))
    assert one.commit == two.commit


def test_the_first_commit_of_an_export_is_the_agent_before_the_meta_patches(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    (tmp_path / "a.diff").write_text("--- /dev/null\n+++ b/notes.txt\n@@ -0,0 +1 @@\n+learned\n")
    summary = run(meta_patch_files=[str(tmp_path / "a.diff")], max_generation=1)
    made = export_generation(summary.run_dir, 1, tmp_path / "copy")
    assert made.lineage == (0, 1)
    assert (
        git(tmp_path / "copy", "log", "--reverse", "--format=%s")
        .splitlines()[0]
        .startswith("Initial agent")
    )
    assert git(tmp_path / "copy", "show", "HEAD~1:notes.txt") == "learned"
    assert "notes.txt" not in git(tmp_path / "copy", "ls-tree", "--name-only", "HEAD~2")


def test_an_export_fills_an_empty_directory_and_rejects_any_other_path(
    finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    export_generation(finished, 1, tmp_path / "empty")
    link = "is a symbolic link; name a new directory"
    refused = {
        "full": "is not empty",
        "file": "not a directory",
        "empty": "is not empty",
        "link": link,
        "dangling": link,
    }
    for name, said in refused.items():
        with pytest.raises(RepositoryError, match=said):
            export_generation(finished, 1, tmp_path / name)
    assert (os.listdir(tmp_path / "full"), os.listdir(tmp_path / "other")) == (["mine"], [])
    assert not (tmp_path / "nothing").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_failed_export_leaves_no_files(finished: Path, tmp_path: Path) -> None:
    blobs = finished / "repository.git" / "objects"
    commit = load_run(finished).generations[2].commit
    tree = git(blobs.parent, "rev-parse", f"{commit}:it's new.txt")
    for path in [blobs / tree[:2] / tree[2:], *blobs.glob("pack/*")]:
        path.unlink(missing_ok=True)
    with pytest.raises(RepositoryError):
        export_generation(finished, 2, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_export_command_prints_json_and_reports_errors(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(finished), "gen_2", str(tmp_path / "copy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lineage"] == ["initial", 1, 2]
    assert main(["export", str(finished), "worst", str(tmp_path / "other")]) == 2
    assert "a generation's number, initial, or best" in capsys.readouterr().err
    assert main(["export", str(finished), "2", str(tmp_path / "copy")]) == 2
    assert "is not empty" in capsys.readouterr().err
