"""Benchmarks of snapshots, forks and rollbacks, and of what a container costs beside `bwrap`."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

import psutil

import hyperruntime as hr
from hyperruntime.runtime import Runtime
from tests.bench.measure import Row, in_turn, seconds, under
from tests.bench.rivals import fresh_args, run_quiet

MOST_MS = {"bubblewrap": 16.0, "apptainer": 30.0}
FORKS = 100
MANY_FORKS = 1000
DEPTH = 100
LEAST_CYCLES = {"bubblewrap": 100.0}
CYCLES = 60
SLOTS = 6  # more than tasks, so that some are reset while others work
TASKS = 4
ALIVE = 1000
PREPARE = "mkdir /many; for n in $(seq 300); do head -c 10000 /dev/zero >/many/$n; done"


def snapshot_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure what a snapshot makes possible; nothing where the engine has none."""
    if not runtime.info.snapshots:
        return []
    spec = hr.ContainerSpec(image=image)
    with runtime.container(spec) as parent:
        parent.exec(["sh", "-c", PREPARE]).check()
        prepared = parent.snapshot()
        rows = fork_rows(runtime, parent, image)
        rows += [rollback_row(parent, prepared, rounds(runtime)), snapshot_row(runtime, parent)]
    rows += [copy_row(), asyncio.run(cycle_row(runtime, spec)), depth_row(runtime, spec)]
    return rows if has_images(runtime) else [*rows, *density_rows(runtime, spec)]


def has_images(runtime: Runtime) -> bool:
    """Return whether snapshots are images of the engine; each action then takes much longer."""
    return runtime.name in ("podman", "docker")


def rounds(runtime: Runtime) -> int:
    """Return how often an action is measured."""
    return 8 if has_images(runtime) else 40


def fork_rows(runtime: Runtime, parent: hr.Container, image: str) -> list[Row]:
    """Measure one fork with its first exec, and many at once."""

    def fork() -> None:
        with parent.fork() as child:
            child.exec(["true"]).check()

    def fork_only() -> float:
        begin = time.perf_counter()
        child = parent.fork()
        child.exec(["true"]).check()
        took = time.perf_counter() - begin
        child.close()
        return took

    name, args = fresh_args(runtime, image)
    pairs = [(fork_only(), seconds(lambda: run_quiet(*args))) for _ in range(rounds(runtime))]
    alone, theirs = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    many = {}
    for count in (FORKS,) if has_images(runtime) else (FORKS, MANY_FORKS):
        with ThreadPoolExecutor(8) as threads:
            begin = time.perf_counter()
            for one in [threads.submit(fork) for _ in range(count)]:
                one.result()
            many[count] = time.perf_counter() - begin
    most = MOST_MS.get(runtime.name, 150.0)
    return [
        under("fork to the child's first exec", alone, "ms", most, f"{name}: {theirs:.0f} ms"),
        *(
            under(f"{count} forks, each with its first exec and its end", took, "s", count / 100)
            for count, took in many.items()
        ),
    ]


def snapshot_row(runtime: Runtime, container: hr.Container) -> Row:
    """Measure a snapshot of a container with 3 MB of changes."""
    name = f"localhost/hyperruntime-bench:{os.getpid()}"
    times = []
    theirs = []
    for _ in range(rounds(runtime)):
        container.exec(["sh", "-c", f"rm -rf /many; {PREPARE}"]).check()
        times.append(seconds(container.snapshot))
        if has_images(runtime):
            commit = [runtime.name, "commit", "--pause=false", container._live.id, name]
            theirs.append(seconds(partial(run_quiet, *commit)))
            run_quiet(runtime.name, "rmi", "--no-prune", name)
    compared = (
        f"`{runtime.name} commit`: {statistics.median(theirs) * 1e3:.0f} ms" if theirs else ""
    )
    value = statistics.median(times) * 1e3
    return Row(what="snapshot of 3 MB of changes", value=value, unit="ms", compared_to=compared)


def rollback_row(container: hr.Container, prepared: hr.Snapshot, count: int) -> Row:
    """Measure a rollback of a container that ran a command."""
    times = []
    for _ in range(count):
        container.exec(["sh", "-c", "rm -r /many; echo x >/x"])
        times.append(seconds(lambda: container.rollback(prepared)))
    return under("rollback, without the next exec", statistics.median(times) * 1e3, "ms", 5.0)


async def cycle_row(runtime: Runtime, spec: hr.ContainerSpec) -> Row:
    """Measure slots with a container each: acquire, a command, release with its reset."""

    def pool(reset: Literal["auto", "replace"]) -> hr.SlotPool:
        config = hr.PoolConfig(
            spec=spec,
            reset=reset,
            slots_per_container=1,
            min_containers=SLOTS,
            max_containers=SLOTS,
        )
        return hr.SlotPool(runtime, config)

    count = 16 if has_images(runtime) else CYCLES

    async def work(pool: hr.SlotPool) -> None:
        for _ in range(count // TASKS):
            async with pool.lease() as lease:
                (await lease.exec(["true"])).check()

    async def rate(pool: hr.SlotPool) -> float:
        begin = time.perf_counter()
        await asyncio.gather(*(work(pool) for _ in range(TASKS)))
        await pool.settle()
        return count / (time.perf_counter() - begin)

    async with pool("auto") as rolled, pool("replace") as replaced:
        pairs = [
            (await rate(rolled), await rate(replaced))
            for _ in range(3 if has_images(runtime) else 7)
        ]
    value, other = map(statistics.median, zip(*pairs, strict=True))
    least = LEAST_CYCLES.get(runtime.name, 60.0)
    return Row(
        what="acquire, exec and release with a reset, a container per slot",
        value=value,
        unit="/s",
        compared_to=f"with new containers: {other:.0f}/s",
        ratio=value / other,
        wanted=f"at least {least:g}/s",
        holds=value >= least,
    )


def copy_row() -> Row:
    """Measure what a copy of the same changes would take."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "source")
        source.mkdir()
        for number in range(300):
            (source / str(number)).write_bytes(bytes(10_000))
        targets = iter(range(100))
        copy = lambda: subprocess.run(  # noqa: E731
            ["cp", "-a", str(source), f"{place}/{next(targets)}"], check=True
        )
        took = statistics.median(seconds(copy) for _ in range(15))
    return Row(what="`cp -a` of 300 files of 10 kB, for comparison", value=took * 1e3, unit="ms")


def depth_row(runtime: Runtime, spec: hr.ContainerSpec) -> Row:
    """Measure a fork over many snapshots in turn with one over a single one."""
    with ExitStack() as stack:
        shallow, deep = (stack.enter_context(runtime.container(spec)) for _ in range(2))
        shallow.exec(["touch", "/0"])
        shallow.snapshot()
        for number in range(DEPTH):
            deep.exec(["touch", f"/{number}"])
            snapshot = deep.snapshot()
            if has_images(runtime):  # else each snapshot has the files of the image and its own
                deep.rollback(snapshot)
        actions: dict[str, Callable[[], object]] = {
            "one": lambda: shallow.fork().close(),
            "many": lambda: deep.fork().close(),
        }
        took = in_turn(actions, min(15, rounds(runtime)))
    ratio = took["many"] / took["one"]
    return Row(
        what=f"a fork over {DEPTH} snapshots",
        value=took["many"] * 1e3,
        unit="ms",
        compared_to=f"over one: {took['one'] * 1e3:.1f} ms",
        ratio=ratio,
        wanted="at most 2x",
        holds=ratio <= 2,
    )


def density_rows(runtime: Runtime, spec: hr.ContainerSpec) -> list[Row]:
    """Measure descriptors of this process, and memory, for each container that is alive."""
    me = psutil.Process()
    children = set(me.children(recursive=True))
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:
        for _ in range(ALIVE):
            stack.enter_context(runtime.container(spec))
        descriptors = (len(os.listdir("/proc/self/fd")) - before) / ALIVE
        theirs = set(me.children(recursive=True)) - children
        memory = sum(map(proportional_bytes, theirs)) / ALIVE / 2**20
    return [
        under("descriptors of this process for each container", descriptors, "", 3.5),
        under(f"memory of one of {ALIVE} idle containers (PSS)", memory, "MiB", 8.0),
    ]


def proportional_bytes(process: psutil.Process) -> int:
    """Return the proportional set size of a process; 0 if it has ended or is another user's."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0
