"""A study: several runs of the same options with other seeds, each of them an ordinary run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from hyperruntime.errors import ArchiveError, RunError, StorageError
from hyperruntime.host.process import wait_until
from hyperruntime.loop.run.plan import plan_resume, plan_run
from hyperruntime.loop.run.run import RunSummary, resume_run, start_run
from hyperruntime.loop.run.study import (
    Interrupts,
    StudyRun,
    create_study,
    plan_study,
    run_study,
)
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.study import Study, read_study
from hyperruntime.loop.workbench.events import StepEvent
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository

ROOT = Path(__file__).parents[4]
KILLED = """
import os, signal, sys
from hyperruntime.loop.run.study import create_study, plan_study
from tests.machine.loop.run.test_study import made, options_of
from pathlib import Path

folder, archived, whole = Path(sys.argv[1]), int(sys.argv[2]), []

def count(event):
    whole.append(event.step == "generation")
    if sum(whole) == archived:
        os.kill(os.getpid(), signal.SIGKILL)

made(create_study(plan_study(options_of(folder), 3)), on_event=count)
"""


def options_of(folder: Path, **changes: Any) -> GenerateOptions:
    """Return the options of a study below a folder; make its agent if it is missing."""
    agent = folder / "agent"
    if not agent.exists():
        make_agent_repository(agent)
    options = GenerateOptions(
        domains="circle_packing", agent=str(agent), eval_samples=(1,), max_generation=2, seed=7,
        run_id="s", output_dir_parent=str(folder / "out"), parallel=2,
    )  # fmt: skip
    return attrs.evolve(options, **changes)


def made(
    study: Study,
    on_event: Callable[..., None] | None = None,
    runtime: Callable[[int], FakeRuntime] = lambda place: FakeRuntime(),
) -> tuple[StudyRun, ...]:
    """Make or resume all runs of a study."""

    def make(place: int, interrupts: Interrupts) -> RunSummary:
        plan = plan_resume(study.runs[place], parallel=study.share)
        return resume_run(runtime(place), plan, on_event, interrupts=interrupts.calling)

    return run_study(study, make, study.runs_at_once)


def lineage(run_dir: str | Path) -> list[tuple[object, ...]]:
    return [(one.genid, one.parent, one.score) for one in load_run(run_dir).generations]


def alone(folder: Path, seed: int) -> list[tuple[object, ...]]:
    """Return the lineage of a run that is started alone."""
    options = options_of(folder, run_id=f"alone{seed}", seed=seed, parallel=1)
    return lineage(start_run(FakeRuntime(), plan_run(options)).run_dir)


def test_each_run_of_a_study_is_as_if_it_were_started_alone(tmp_path: Path) -> None:
    study = create_study(plan_study(options_of(tmp_path), 3))
    assert (study.runs_at_once, study.share) == (2, 1)
    assert [load_run(run).generations for run in study.runs] == [(), (), ()]
    # a change of the agent meanwhile is in no run
    (tmp_path / "agent" / "value.py").write_text("VALUE = 0.9\n")
    ends = made(study)
    (tmp_path / "agent" / "value.py").write_text("VALUE = 0.5\n")
    assert [end.error for end in ends] == [None] * 3
    for seed, run_dir in enumerate(study.runs, 7):
        assert lineage(run_dir) == alone(tmp_path, seed)
    assert read_study(study.root) == study


@pytest.mark.parametrize("archived", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_study_is_resumed_and_loses_nothing(tmp_path: Path, archived: int) -> None:
    options_of(tmp_path)
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(archived)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=env, capture_output=True, timeout=120, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    study = read_study(tmp_path / "out" / "study_s")
    before = [lineage(run_dir) for run_dir in study.runs]
    if any(before):  # always after four generations
        # not removed as what a killed start left, also if its file is lost
        file = (study.root / "study.json").rename(tmp_path / "study.json")
        with pytest.raises(
            RunError, match=r"runs with generations: resume each with .*generate_s_"
        ):
            plan_study(options_of(tmp_path), 3)
        file.rename(study.root / "study.json")
    assert any(before) or archived == 1
    made(study)
    after = [lineage(run_dir) for run_dir in study.runs]
    assert [now[: len(was)] for was, now in zip(before, after, strict=True)] == before
    assert after == [alone(tmp_path, seed) for seed in (7, 8, 9)]


def test_a_run_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    study = create_study(plan_study(options_of(tmp_path), 3))

    def broken(place: int) -> FakeRuntime:
        return FakeRuntime(images=()) if place == 0 else FakeRuntime()

    ends = made(study, runtime=broken)
    assert "pass it to FakeRuntime" in str(ends[0].error)
    assert [end.error for end in ends[1:]] == [None, None]
    made(study)
    assert [load_run(run).state for run in study.runs] == ["finished"] * 3


def test_an_interrupt_ends_all_runs_and_begins_no_other(tmp_path: Path) -> None:
    make_agent_repository(tmp_path / "agent", {1: "import time; time.sleep(600)"})
    study = create_study(plan_study(options_of(tmp_path), 3))

    running: list[str] = []
    begun: list[bool] = []

    def count(event: StepEvent) -> None:
        if (event.step, event.state) == ("meta agent", "start"):
            running.append(event.generation)

    def interrupt() -> None:
        begun.append(wait_until(lambda: len(running) == 2, 120))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    ends = made(study, on_event=count)
    thread.join()
    assert begun == [True]
    assert [end.summary.interrupted for end in ends if end.summary] == [True, True]
    assert ends[2] == StudyRun(run_dir=study.runs[2])
    assert [len(load_run(run).generations) for run in study.runs] == [1, 1, 0]


def test_a_study_directory_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    plan = plan_study(options_of(tmp_path), 2)
    with pytest.raises(StorageError, match="exists"):  # its second run
        create_study(attrs.evolve(plan, plans=(plan.plans[0], plan.plans[0])))
    assert not plan.study.root.exists()
    study = create_study(plan_study(options_of(tmp_path), 2))
    with pytest.raises(RunError, match="exists already; resume it with `hyperrun resume"):
        plan_study(options_of(tmp_path), 2)
    for names in ([], ["generate_s_1", "generate_s_1"], ["../x"], ["generate_../../x"], [3], "x"):
        (study.root / "study.json").write_text(json.dumps({"runs": names}))
        with pytest.raises(ArchiveError, match="is not a valid file of a study"):
            read_study(study.root)
