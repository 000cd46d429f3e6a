"""Fixtures with a finished run. It is made once, and each test that changes it gets a copy."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import RunSummary, start_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.events import StepEvent
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository
from tests.runs import options_below, start

# A meta agent adds its generation to the file "calls" in the run's directory, then waits while
# "hang" exists.
_RECORDED_CALL = """
import time
run_dir = os.path.dirname(os.path.realpath(evals))
with open(run_dir + "/calls", "a") as file:
    file.write(generation + "\\n")
while os.path.exists(run_dir + "/hang"):
    open(run_dir + "/hangs", "w").close()
    time.sleep(0.01)
improve()
"""
_ACTIONS = {
    2: "open('it\\'s new.txt', 'w').write('x\\r\\n')\nimprove()",
    3: "raise SystemExit(3)",
    **dict.fromkeys(range(4, 20), _RECORDED_CALL),
}


@attrs.frozen
class WholeRun:
    """A run with the generations initial, 1, 2 (child of 1) and 3, which failed before it had a
    state.

    Attributes:
        summary: the return value of the run; do not change its directory.
        events: all events of the run; the callback raised an exception for each event of generation
            1.
        runtime: the runtime of the run.
        agent: the repository of the initial agent.
        agent_files: modification time of each file of the agent before the run.
    """

    summary: RunSummary
    events: list[StepEvent]
    runtime: FakeRuntime
    agent: Path
    agent_files: dict[Path, int]

    @property
    def root(self) -> Path:
        """The run's directory."""
        return Path(self.summary.run_dir)


def times_of(folder: Path) -> dict[Path, int]:
    """Return the modification time of each file below a folder."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """Return a finished run; tests must not change it."""
    place = tmp_path_factory.mktemp("whole run")
    agent = make_agent_repository(place / "an agent's repo", _ACTIONS)
    before, runtime, events = times_of(agent), FakeRuntime(), list[StepEvent]()

    def take(event: StepEvent) -> None:
        events.append(event)
        if event.generation == "1":
            raise RuntimeError("a callback's own mistake")

    summary = start(
        runtime, place, take, agent=str(agent), max_generation=3, parent_selection="latest",
        run_id="r",
    )  # fmt: skip
    return WholeRun(summary, events, runtime, agent, before)


@pytest.fixture
def finished(whole_run: WholeRun, tmp_path: Path) -> Path:
    """Return a copy of the finished run's directory."""
    return Path(shutil.copytree(whole_run.root, tmp_path / "out" / whole_run.root.name))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunSummary]:
    """Return a function that makes an agent with scripted generations and runs it."""

    def made(
        actions: dict[int, str] | None = None, *, runtime: FakeRuntime | None = None, **options: Any
    ) -> RunSummary:
        return start_run(runtime or FakeRuntime(), plan_run(chosen(tmp_path, actions, **options)))

    return made


@pytest.fixture
def options_of(tmp_path: Path) -> Callable[..., GenerateOptions]:
    """Return a function that makes the options of a run and does not start it."""
    return lambda **options: chosen(tmp_path, None, **options)


def chosen(folder: Path, actions: dict[int, str] | None, **options: Any) -> GenerateOptions:
    """Return the options of a run below a folder; make its agent if it is missing."""
    agent = folder / "an agent's repo"
    if not agent.exists():
        make_agent_repository(agent, actions)
    defaults: dict[str, Any] = {"agent": str(agent), "max_generation": 2, "run_id": "r"}
    return options_below(folder, **{**defaults, **options})


@pytest.fixture
def hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return code that makes a meta agent hang; its time limit of 5000 s ends as soon as it
    hangs.
    """
    hung = tmp_path / "it hangs"

    class Moved(threading.Timer):
        def run(self) -> None:
            while not self.finished.wait(0.01):
                if self.interval == 5000 and hung.exists():
                    hung.unlink()
                    self.function()
                    return

    monkeypatch.setattr(threading, "Timer", Moved)
    return f"import time; open({os.fspath(hung)!r}, 'w').close(); time.sleep(600)"
