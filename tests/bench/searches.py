"""Benchmarks of groups and searches over an environment with a long set-up."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hyperruntime as hr
from hyperruntime.rollout.environment import Item
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts, run_rollouts
from hyperruntime.rollout.run_files.run_dir import read_trajectories
from hyperruntime.runtime import Runtime
from tests.bench.measure import Row, seconds
from tests.doubles.scripted_rollouts import Scripted, ScriptedModel

GROUP = 8
SETUP_S = 10.0
COMMAND_S = 0.1
PARALLEL = 4
NODES = 240
TURNS = 30
COMMAND = f"sleep {COMMAND_S}; echo x >>log"


def slow(*, setup_per_trajectory: bool = False) -> Scripted:
    """An environment whose set-up sleeps; more lines are worth more."""
    return Scripted(set_up=f"sleep {SETUP_S}; : >log", setup_per_trajectory=setup_per_trajectory)


def writer(turns: int) -> ScriptedModel:
    """A model that writes a line with each turn."""
    return ScriptedModel(lambda turn, seed: COMMAND if turn < turns else None)


def group_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure a group over a long set-up, two trajectories at once."""

    def run(environment: Scripted) -> float:
        return seconds(lambda: _run(runtime, image, environment, writer(1), parallel=2))

    shared, own = slow(), slow(setup_per_trajectory=True)
    took = run(shared)
    beside = run(own)
    return [
        Row(
            what=f"group of {GROUP}, a set-up of {SETUP_S:g} s, two at once",
            value=took,
            unit="s",
            compared_to=f"a set-up for each: {beside:.0f} s",
            ratio=beside / took,
            wanted="one set-up" if runtime.info.snapshots else "",
            holds=shared.set_ups == 1 if runtime.info.snapshots else None,
        )
    ]


def search_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure the nodes of a beam search, beside nodes that replay all commands from the start."""
    if not runtime.info.snapshots:
        return []
    with tempfile.TemporaryDirectory() as folder:
        options = {"search": "beam", "search_nodes": NODES, "parallel": PARALLEL}
        took = seconds(
            lambda: _run(runtime, image, slow(), writer(TURNS), Path(folder, "run"), **options)
        )
        found = read_trajectories(Path(folder, "run"))
    facts = found[0].verdict["facts"]["search"]
    depths = [*range(1, found[0].turns + 1, max(1, found[0].turns // 8))][:8]
    replayed = seconds(lambda: asyncio.run(_replay(runtime, image, depths)))
    ours, theirs = 60 * facts["nodes"] / took, 60 * len(depths) / replayed
    return [
        Row(
            what=f"nodes of a search, a set-up of {SETUP_S:g} s, commands of {COMMAND_S:g} s",
            value=ours,
            unit="/min",
            compared_to=f"replaying the commands: {theirs:.0f}/min",
            ratio=ours / theirs,
            wanted="at least 20x",
            holds=ours / theirs >= 20,
        )
    ]


async def _replay(runtime: Runtime, image: str, depths: Sequence[int]) -> None:
    """Reach nodes of these depths from the start of a container each."""
    environment = slow()
    spec = hr.ContainerSpec(image=image)
    config = hr.PoolConfig(spec=spec, slots_per_container=1, max_containers=PARALLEL)

    async def reach(pool: hr.SlotPool, depth: int) -> None:
        async with pool.lease(timeout_s=600) as lease:
            await environment.setup(Item(id="item"), lease)
            for _ in range(depth):
                await lease.tool("bash", {"command": COMMAND})
            await lease.stat("log")

    async with hr.SlotPool(runtime, config) as pool:
        await asyncio.gather(*(reach(pool, depth) for depth in depths))


def _run(
    runtime: Runtime,
    image: str,
    environment: Scripted,
    model: ScriptedModel,
    run_dir: Path | None = None,
    **given: Any,
) -> None:
    options = RolloutOptions(
        environment="scripted",
        group_size=GROUP,
        seed=1,
        container=hr.ContainerSpec(image=image),
        **given,
    )
    parts = Parts(environment=environment, model=model)
    summary = asyncio.run(run_rollouts(runtime, options, run_dir=run_dir, parts=parts))
    if summary.scored != GROUP:
        raise AssertionError(summary)
