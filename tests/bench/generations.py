"""Benchmarks of the loop: the time of a generation beyond the agent's own, and operations on long
runs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import attrs

from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run_files.archive import Archive, load_run
from hyperruntime.loop.run_files.layout import (
    AGENT_OUTPUT,
    METADATA,
    PATCH,
    Layout,
    generation_name,
)
from hyperruntime.loop.run_files.record import GenerationRecord, record_to_json
from hyperruntime.runtime import Runtime
from hyperruntime.storage.atomic import json_line
from tests.bench.measure import Row, in_turn, under
from tests.doubles.fake_runtime import make_agent_repository
from tests.runs import start

AGENT_STEPS = ("meta agent", "evaluate")
ROUNDS = 10
FEW, MANY = 10, 10_000
SLEEP_S, SLEEPERS = 10.0, 8


def overhead_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure the overhead of a generation in a run of 10 and in one of 10,000, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {size: new_run(runtime, image, folder, f"run{size}") for size in (FEW, MANY)}
        overheads: dict[int, list[float]] = {FEW: [], MANY: []}
        for size, run in runs.items():
            fill(run, size)
        for _ in range(ROUNDS):
            for size, run in runs.items():
                overheads[size].append(one_more(runtime, run))
    young, old = (statistics.median(overheads[size]) for size in (FEW, MANY))
    return [
        Row(
            what=f"a generation beyond the agent's own time, {FEW} archived",
            value=young * 1e3,
            unit="ms",
            wanted="at most 1000 ms",
            holds=young <= 1,
        ),
        Row(
            what=f"the same, {MANY:,} archived",
            value=old * 1e3,
            unit="ms",
            compared_to=f"{FEW} archived: {young * 1e3:.0f} ms",
            ratio=old / young,
            wanted="within 20 %",
            holds=old / young <= 1.2,
        ),
    ]


def long_run_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure the status, the reading and the resuming of a run of 10,000 generations."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {size: new_run(runtime, image, folder, f"run{size}") for size in (FEW, MANY)}
        for size, run in runs.items():
            fill(run, size)
        shown = in_turn({str(size): partial(show_status, run) for size, run in runs.items()}, 7)
        loads = in_turn({str(size): partial(load_run, run) for size, run in runs.items()}, 7)
        opened = in_turn(
            {str(size): partial(_resume, runtime, run, size) for size, run in runs.items()}, 5
        )
    shown_s = shown[str(MANY)]
    return [
        under(
            f"`hyperrun status` of {MANY:,} generations, the whole process",
            shown_s * 1e3,
            "ms",
            1000,
            f"of {FEW}: {shown[str(FEW)] * 1e3:.0f} ms",
        ),
        _compared(f"reading a run of {MANY:,} generations", loads),
        _compared(f"resuming a run of {MANY:,} generations, with nothing left to do", opened),
    ]


def _resume(runtime: Runtime, run: str, size: int) -> RunSummary:
    return resume_run(runtime, plan_resume(run, max_generation=size))


def parallel_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure a run whose agents sleep, with one and with four generations at once."""
    rates = {}
    for parallel in (1, 4):
        with tempfile.TemporaryDirectory() as folder:
            sleep = f"import time; time.sleep({SLEEP_S}); improve()"
            make_agent_repository(
                Path(folder, "agent"), dict.fromkeys(range(1, SLEEPERS + 1), sleep)
            )
            run = new_run(runtime, image, folder, "run", max_generation=0)
            begin = time.monotonic()
            summary = resume_run(
                runtime, plan_resume(run, max_generation=SLEEPERS, parallel=parallel)
            )
            rates[parallel] = SLEEPERS / (time.monotonic() - begin) * 3600
        assert [record.failure for record in summary.generations] == [None] * (SLEEPERS + 1)
    return [
        Row(
            what=f"generations of an agent that sleeps {SLEEP_S:g} s, --parallel 4",
            value=rates[4],
            unit="an hour",
            compared_to=f"--parallel 1: {rates[1]:.0f}",
            ratio=rates[4] / rates[1],
            wanted="at least 3 times",
            holds=rates[4] >= 3 * rates[1],
        )
    ]


def _compared(what: str, times: Mapping[str, float]) -> Row:
    few, many = times[str(FEW)], times[str(MANY)]
    return Row(
        what=what,
        value=many * 1e3,
        unit="ms",
        compared_to=f"of {FEW}: {few * 1e3:.1f} ms",
        ratio=many / few,
    )


def show_status(run: str) -> None:
    """Run ``hyperrun status`` on a run."""
    program = str(Path(sys.executable).with_name("hyperrun"))
    subprocess.run([program, "status", run], check=True, stdout=subprocess.DEVNULL)


def new_run(runtime: Runtime, image: str, folder: str, name: str, max_generation: int = 1) -> str:
    """Make a run whose agent does almost nothing; return its directory."""
    agent = Path(folder, "agent")
    if not agent.exists():
        make_agent_repository(agent)
    summary = start(
        runtime, Path(folder), agent=str(agent), image=image, run_id=name,
        output_dir_parent=folder, seed=1, max_generation=max_generation,
    )  # fmt: skip
    assert summary.generations[-1].failure is None, summary.generations[-1]
    return summary.run_dir


def fill(run: str, size: int) -> None:
    """Archive copies of generation 1, as one family tree, until a run has ``size`` of them."""
    layout = Layout(Path(run))
    first = Archive.load(layout)[1]
    patch = layout.generation(1) / AGENT_OUTPUT / PATCH
    metadata = (layout.generation(1) / METADATA).read_bytes()
    with layout.journal.open("ab") as journal:
        for number in range(2, size + 1):
            record = attrs.evolve(first, genid=number, parent=number // 2)
            journal.write(json_line(record_to_json(record)))
            for folder in (layout.generation(number), layout.view / generation_name(number)):
                (folder / AGENT_OUTPUT).mkdir(parents=True)
                os.link(patch, folder / AGENT_OUTPUT / PATCH)
                (folder / METADATA).write_bytes(metadata)


def one_more(runtime: Runtime, run: str) -> float:
    """Add a generation to a run; return its seconds beyond the agent's own steps.

    The time begins with the first step, so opening the run and probing the engine do not count.
    """
    number = len(load_run(run).generations)
    marks: list[float] = []

    def note(event: object) -> None:
        marks.append(time.monotonic())

    begin = time.monotonic()
    summary = resume_run(runtime, plan_resume(run, max_generation=number), note)
    end = time.monotonic()
    record: GenerationRecord = summary.generations[-1]
    assert record.genid == number, record
    assert record.failure is None, record
    opening = marks[0] - begin
    return end - begin - opening - sum(record.durations.get(step, 0.0) for step in AGENT_STEPS)
