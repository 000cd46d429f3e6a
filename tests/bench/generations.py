"""Benchmarks of the loop: what a generation costs beyond the agent's own time, and resuming a long run."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import attrs

from hyperruntime.loop.archive import Archive, load_run
from hyperruntime.loop.finish import finish_generation
from hyperruntime.loop.layout import Layout
from hyperruntime.loop.options import GenerateOptions
from hyperruntime.loop.record import GenerationRecord
from hyperruntime.loop.run import resume_run, start_run
from hyperruntime.loop.start import load_domains
from hyperruntime.runtime import Runtime
from hyperruntime.testing import make_agent_repository
from tests.bench.measure import Row, in_turn

AGENT_STEPS = ("meta agent", "evaluate")
DOMAIN = "circle_packing"
ROUNDS = 10


def overhead_rows(runtime: Runtime, image: str) -> list[Row]:
    """Time generations in a young run and in one of 200, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {1: new_run(runtime, image, folder, "young"), 200: new_run(runtime, image, folder, "old")}
        fill(runs[200], 200)
        overheads: dict[int, list[float]] = {1: [], 200: []}
        for _ in range(ROUNDS):
            for size, run in runs.items():
                overheads[size].append(one_more(runtime, run))
                if size == 1:
                    shutil.rmtree(run)
                    runs[1] = new_run(runtime, image, folder, "young")
    young, old = (statistics.median(overheads[size]) for size in (1, 200))
    return [
        Row(
            what="a generation beyond the agent's own time, 1 archived",
            value=young * 1e3,
            unit="ms",
            wanted="at most 1000 ms",
            holds=young <= 1,
        ),
        Row(
            what="the same, 200 archived",
            value=old * 1e3,
            unit="ms",
            compared_to=f"1 archived: {young * 1e3:.0f} ms",
            ratio=old / young,
            wanted="within 20 %",
            holds=old / young <= 1.2,
        ),
    ]


def resume_rows(runtime: Runtime, image: str) -> list[Row]:
    """Time opening runs of 10 and of 1,000 generations again, with nothing left to do."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {size: new_run(runtime, image, folder, f"run{size}") for size in (10, 1000)}
        for size, run in runs.items():
            fill(run, size)
        times = in_turn(
            {str(size): partial(resume_run, runtime, run, max_generation=size) for size, run in runs.items()}, 7
        )
        loads = in_turn({str(size): partial(load_run, run) for size, run in runs.items()}, 7)
    return [
        Row(
            what="resuming a run of 1,000 generations",
            value=times["1000"] * 1e3,
            unit="ms",
            compared_to=f"of 10: {times['10'] * 1e3:.0f} ms",
            ratio=times["1000"] / times["10"],
        ),
        Row(
            what="reading a run of 1,000 generations",
            value=loads["1000"] * 1e3,
            unit="ms",
            compared_to=f"of 10: {loads['10'] * 1e3:.1f} ms",
            ratio=loads["1000"] / loads["10"],
        ),
    ]


def new_run(runtime: Runtime, image: str, folder: str, name: str) -> str:
    """Make a run of one real generation with an agent that does next to nothing; return its directory."""
    agent = Path(folder, "agent")
    if not agent.exists():
        make_agent_repository(agent)
    options = GenerateOptions(
        domains=(DOMAIN,),
        agent=str(agent),
        image=image,
        run_id=name,
        output_dir_parent=folder,
        seed=1,
        max_generation=1,
        eval_samples=(1,),
        parent_selection="latest",
    )
    summary = start_run(runtime, options)
    assert summary.generations[-1].failure is None, summary.generations[-1]
    return summary.run_dir


def fill(run: str, size: int) -> None:
    """Archive copies of the first generation until a run holds ``size`` of them."""
    layout = Layout(Path(run))
    archive, domains = Archive.load(layout), load_domains((DOMAIN,))
    first = archive[1]
    for number in range(2, size + 1):
        record = attrs.evolve(first, genid=number, parent=number - 1)
        shutil.copytree(layout.generation(1), layout.partial(number))
        finish_generation(layout, archive, record, domains)


def one_more(runtime: Runtime, run: str) -> float:
    """Add a generation to a run; return the seconds it took beyond what the agent itself did.

    The run's opening and the engine's probing are not the generation's: from its first step to its archive line.
    """
    number = len(load_run(run).generations)
    marks: list[float] = []

    def note(event: object) -> None:
        marks.append(time.monotonic())

    begin = time.monotonic()
    summary = resume_run(runtime, run, max_generation=number, on_event=note)
    end = time.monotonic()
    record: GenerationRecord = summary.generations[-1]
    assert record.genid == number, record
    assert record.failure is None, record
    opening = marks[0] - begin
    return end - begin - opening - sum(record.durations.get(step, 0.0) for step in AGENT_STEPS)
