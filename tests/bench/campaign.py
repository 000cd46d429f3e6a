"""A campaign of short tasks on many nodes: what the head costs, and what it adds to their time.

    python -m tests.bench.campaign [--nodes 256] [--tasks 11182] [--seconds 1] [--profile FILE]
                                   [--json FILE]

The head is a real cluster with a real pool of slots. The node servers are real too, and each has a
connection of its own: TLS, on this machine. A few processes run them all; the slot of each has no
container, and its task is a pause. So the figures of the head are those of a head anywhere, and the
time is that of a machine whose few cores run all nodes beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import math
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import psutil

import hyperruntime as hr
from hyperruntime.cluster.head import Invitation, Node
from hyperruntime.cluster.job_directory import JOBS_PREFIX
from hyperruntime.cluster.node_server import run_node
from hyperruntime.cluster.node_services import NodeContext, NodeSettings
from hyperruntime.pool_values.results import ExecutionResult
from hyperruntime.settings.reader import read
from hyperruntime.wire.peer import Answer, Call
from tests.bench.cluster import SimulatedPool
from tests.bench.measure import Row, under
from tests.bench.page import report

OVERHEAD_S = 30.0
PROCESSES = 4  # that run the node servers


class PausingPool(SimulatedPool):
    """The service of a pool on a node that has one slot, whose tool is a pause."""

    slots = 1

    async def _tool(self, call: Call) -> Answer:
        await asyncio.sleep(call.args["args"]["seconds"])
        return Answer(attrs.asdict(ExecutionResult(success=True, metadata={"returncode": 0})))


def serve(invitations: Sequence[Invitation]) -> None:
    """Be nodes until the head is gone."""

    def services(context: NodeContext) -> tuple[PausingPool]:
        return (PausingPool(context),)

    async def run() -> None:
        nodes = (run_node(invitation, NodeSettings(), services) for invitation in invitations)
        await asyncio.gather(*nodes, return_exceptions=True)

    asyncio.run(run())


class WithoutImages(hr.Cluster):
    """A cluster whose nodes need no image."""

    async def give_image(self, node: Node, image: str) -> None:
        """Do nothing: no slot has a container."""


@contextmanager
def node_processes(folder: Path, count: int) -> Iterator[float]:
    """Start nodes that accept the invitation for all in a directory; yield when they began."""
    (needs,) = folder.glob(f"{JOBS_PREFIX}*/nodes.json")
    everyone = read(Invitation, json.loads(needs.read_text())["invitation"], path="invitation")
    invitations = [attrs.evolve(everyone, name=f"n{number}") for number in range(count)]
    spawn = multiprocessing.get_context("spawn")
    processes = [
        spawn.Process(target=serve, args=(invitations[first::PROCESSES],), daemon=True)
        for first in range(PROCESSES)
    ]
    begin = time.perf_counter()
    for process in processes:
        process.start()
    try:
        yield begin
    finally:
        for process in processes:
            process.kill()  # SIGTERM would only make it take no new work
        for process in processes:
            process.join()


async def campaign_rows(
    folder: Path, nodes: int, tasks: int, seconds: float, profile: str | None
) -> list[Row]:
    """Run the tasks, all of which wait for a slot at once, one slot on each node."""
    config = hr.ClusterConfig(provider="command", address="127.0.0.1", max_nodes=nodes)
    slots = hr.PoolConfig(
        spec=hr.ContainerSpec(image="x"),
        max_containers=1,
        slots_per_container=1,
        acquire_timeout_s=3600,
    )
    async with WithoutImages(config, folder) as cluster:
        spent = time.process_time()
        starting = node_processes(folder, nodes)
        begin = await asyncio.to_thread(starting.__enter__)
        async with hr.ClusterPool(cluster, slots) as pool:
            while pool.status().total_slots < nodes:
                await asyncio.sleep(0.05)
            joined_s = time.perf_counter() - begin
            joining = time.process_time() - spent

            async def run_one() -> None:
                slot = await pool.acquire()
                await pool.execute(slot, "pause", {"seconds": seconds})
                await pool.release(slot)

            profiler = cProfile.Profile()
            if profile:
                profiler.enable()
            spent, begin = time.process_time(), time.perf_counter()
            await asyncio.gather(*(run_one() for _ in range(tasks)))
            took, cost = time.perf_counter() - begin, time.process_time() - spent
            if profile:
                profiler.disable()
                profiler.dump_stats(profile)
        memory = psutil.Process().memory_info().rss
        await asyncio.to_thread(starting.__exit__, None, None, None)
    least = math.ceil(tasks / nodes) * seconds
    of_nodes = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"processor time of the nodes: {of_nodes.ru_utime + of_nodes.ru_stime:.1f} s")
    what = f"{tasks:,} tasks of {seconds:g} s on {nodes} nodes, {least:.0f} s without overhead"
    return [
        Row(
            what=f"{what}: overhead",
            value=took - least,
            unit="s",
            compared_to=f"in all: {took:.1f} s",
            ratio=took / least,
            wanted=f"at most {OVERHEAD_S:g} s",
            holds=took - least <= OVERHEAD_S,
        ),
        Row(what="processor time of the head for them", value=cost, unit="s"),
        under("cores of the head meanwhile", cost / took, "", 1),
        under("memory of the head afterwards", memory / 2**20, "MiB", 1024),
        Row(
            what=f"processor time of the head until {nodes} nodes have joined",
            value=joining,
            unit="s",
        ),
        Row(
            what="until they have joined, their processes on the same cores",
            value=joined_s,
            unit="s",
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.campaign", description=__doc__)
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--tasks", type=int, default=11_182, help="how many")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each task")
    parser.add_argument("--profile", metavar="FILE", help="write the head's profile (cProfile)")
    parser.add_argument("--json", metavar="FILE", help="write the rows to this file")
    given = parser.parse_args()
    hr.raise_file_limit()
    with tempfile.TemporaryDirectory() as place:
        rows = asyncio.run(
            campaign_rows(Path(place), given.nodes, given.tasks, given.seconds, given.profile)
        )
    return report("A campaign of short tasks", rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
