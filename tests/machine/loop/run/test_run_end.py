"""Whatever ends a run: its reason is stored, and the table, the plots and the next step are
shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperruntime.cli import main
from hyperruntime.cli.loop.progress import showing_what_there_is
from hyperruntime.errors import EngineError, RunError, SpecError, StorageError
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import resume_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.follow import JournalFollower
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.report.page.generations import LoopRun
from hyperruntime.runs.own_mark import has_own_mark
from hyperruntime.runs.run_file import note_end
from hyperruntime.secrets.known import Secrets
from hyperruntime.spec import ContainerSpec
from tests.doubles.fake_runtime import FakeRuntime

NOTHING = "no place for a container"


def failing(error: BaseException) -> FakeRuntime:
    def start(spec: ContainerSpec) -> None:
        raise error

    return FakeRuntime(before_start=start)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (
            EngineError(NOTHING),
            RunError,
            f"generation 6 could not be made: {NOTHING}; see `hyperrun doctor`, then ",
        ),
        (SpecError("image", "x", "another one"), SpecError, "image='x' is not allowed"),
        (KeyboardInterrupt(), KeyboardInterrupt, "it was interrupted"),
        (SystemExit("odd"), SystemExit, "unexpected SystemExit: odd"),
    ],
)
def test_the_reason_of_an_early_end_is_stored_and_a_resume_removes_it(
    finished: Path,
    error: BaseException,
    kind: type[BaseException],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(kind):
        resume_run(failing(error), plan_resume(finished, max_generation=7))
    view = load_run(finished)
    assert has_own_mark(json.loads((finished / "run.json").read_text()), finished), (
        "the run is still this user's own"
    )
    assert view.state == "interrupted"
    assert view.ended.startswith(reason)
    follower = JournalFollower(finished)
    follower.read_new()
    assert follower.view().ended == view.ended
    assert LoopRun(view, Secrets()).head()["options"]["ended"] == view.ended
    assert main(["status", str(finished)]) == 0
    assert f"; ended because: {view.ended}" in capsys.readouterr().out
    assert main(["status", str(finished), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == view.ended
    resume_run(FakeRuntime(), plan_resume(finished))
    assert (load_run(finished).state, load_run(finished).ended) == ("finished", "")
    assert "ended" not in json.loads((finished / "run.json").read_text())


def test_a_disk_that_cannot_be_written_ends_a_run_with_its_reason_and_not_with_that_of_the_clean_up(
    finished: Path,
) -> None:
    listing = finished / "archive.jsonl"
    kept = listing.read_bytes()

    def lose_listing(event: StepEvent) -> None:
        if event.generation == "4" and event.step == "diff" and listing.is_file():
            listing.unlink()
            listing.mkdir()

    with pytest.raises(StorageError, match="archive"):
        resume_run(FakeRuntime(), plan_resume(finished, max_generation=5), lose_listing)
    assert "archive.jsonl" in load_run(finished).ended
    listing.rmdir()
    listing.write_bytes(kept)
    assert len(resume_run(FakeRuntime(), plan_resume(finished)).generations) == 6


@pytest.mark.parametrize(
    ("error", "as_json"),
    [
        (RunError("the engine is gone"), False),
        (KeyboardInterrupt(), True),
        (ValueError("x"), False),
    ],
)
def test_an_error_that_ends_a_command_comes_after_the_table_the_plots_and_the_next_step(
    finished: Path, error: BaseException, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EngineError):
        _end_with(finished, EngineError(NOTHING))
    capsys.readouterr()
    with pytest.raises(type(error)), showing_what_there_is(lambda: finished, as_json):
        raise error
    shown = capsys.readouterr()
    if as_json:
        assert [one["current_genid"] for one in json.loads(shown.out)["generations"]] == [
            "initial",
            1,
            2,
            3,
        ]
    else:
        assert [line.split()[0] for line in shown.out.splitlines()[1:5]] == [
            "initial",
            "1",
            "2",
            "3",
        ]
    assert f"the run ended early: {NOTHING}; continue with: hyperrun resume " in shown.err
    assert "plots are in" in shown.err


def _end_with(root: Path, error: Exception) -> None:
    """Note an end as a run does, and raise the error."""
    from hyperruntime.runs.run_file import note_end, reason_of

    known = json.loads((root / "run.json").read_text())
    known["options"]["max_generation"] = 9
    (root / "run.json").write_text(json.dumps(known))
    note_end(root / "run.json", reason_of(error))
    raise error


def test_nothing_is_shown_while_there_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    where: Callable[[], Path | None] = lambda: None  # noqa: E731
    with pytest.raises(RunError), showing_what_there_is(where, False):
        raise RunError("no agent")
    assert capsys.readouterr() == ("", "")


def test_a_reason_in_a_foreign_file_is_one_line_that_a_terminal_can_show(finished: Path) -> None:
    known = json.loads((finished / "run.json").read_text())
    known["options"]["max_generation"] = 9
    for ended, shown in (("a\x1b[2J\nb", "a [2J b"), (["x"], ""), ("x" * 9999, "x" * 600 + " ...")):
        (finished / "run.json").write_text(json.dumps({**known, "ended": ended}))
        assert load_run(finished).ended == shown


def test_the_reason_gives_a_run_of_somebody_else_no_mark(finished: Path) -> None:
    stored = json.loads((finished / "run.json").read_text())
    (finished / "run.json").write_text(json.dumps({**stored, "mark": "0" * 64}))
    note_end(finished / "run.json", "it ended")
    noted = json.loads((finished / "run.json").read_text())
    assert noted["ended"] == "it ended"
    assert not has_own_mark(noted, finished)
