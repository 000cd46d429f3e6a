"""How the command line shows a study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hyperruntime.cli import main
from hyperruntime.cli.loop.progress import Tracker
from hyperruntime.cli.loop.studies import StudyTracker
from hyperruntime.cli.progress import Line
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.workbench.events import StepEvent, StepState
from tests.doubles.study_runs import study


def test_the_progress_of_a_study_names_the_run_of_each_generation() -> None:
    tracker = StudyTracker([Tracker(3), Tracker(3)])

    def take(run: int, step: str, state: StepState, score: float | None = None) -> Line | None:
        event = StepEvent(generation="1", step=step, state=state, score=score)
        return tracker.take((run, event))

    assert take(1, "meta agent", "start") == Line("run 2, generation 1: meta agent", is_minor=True)
    assert list(tracker.running) == ["run 2, generation 1"]
    assert tracker.summary() == ""
    for run, score in ((1, 0.5), (0, 0.25)):
        line = take(run, "generation", "done", score)
        assert line is not None
        assert line.text.startswith(f"run {run + 1}, generation 1: score {score:.4f}")
    assert (tracker.done, tracker.total, tracker.running) == (2, 6, {})
    assert tracker.summary() == "best 0.5000 (run 2)"


def test_a_study_is_shown_with_runs_that_are_finished_waiting_and_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = study(tmp_path / "study_1", [0.1, 0.5], [0.2, None], [0.3])
    Layout(root / "generate_study_1_1").journal.write_text("")
    Layout(root / "generate_study_1_2").run.write_text("{")
    assert main(["status", str(root)]) == 0
    said = capsys.readouterr()
    first, _, *rows = said.out.splitlines()
    assert first == f"{root}: interrupted, 1 of 3 runs, best 0.5000"
    assert [row.split() for row in rows] == [
        ["1", "0", "finished", "2", "2", "0", "0.5000", "1"],
        ["2", "1", "not", "begun", "0", "2", "0", "-", "-"],
        ["3", "-", "damaged", "-", "-", "-", "-", "-"],
    ]
    assert "cannot be read" in said.err
    assert f"continue with: hyperrun resume {root}" in said.err
    assert main(["status", str(root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [run["state"] for run in told["runs"]] == ["finished", "interrupted", "damaged"]
    assert main(["status", str(root), "--sort", "best", "--tail", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "1"
    assert main(["status", str(root), "--watch"]) == 0
    assert "not begun" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "evaluate", "export", "watch"])
def test_a_command_for_one_run_names_what_to_give_instead_of_a_study(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = study(tmp_path / "study_1", [0.1])
    more = {"watch": [], "export": ["best", str(tmp_path / "new")]}.get(command, ["best"])
    assert main([command, str(root), *more]) == 2
    assert "a study; give one of the generate_... directories" in capsys.readouterr().err
