"""Benchmarks of many containers and many calls at once: descriptors, closing together, stalls of an
event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import hyperruntime as hr
from hyperruntime.runtime import Runtime
from tests.bench.measure import Row, longest_gap, seconds

_CONTAINERS, _CALLS = 20, 1000
_BEAT_S = 0.005


def crowd_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure what idle containers hold, and closing them one by one and together."""
    held, threads, alone = _closed_alone(runtime.name, image)
    with hr.open_runtime(runtime.name) as opened:
        _start(opened, image)
        together = seconds(opened.close)
    return [
        Row(
            what="descriptors of an idle container",
            value=held,
            unit="descriptors",
            compared_to=f"threads of all: {threads}",
            wanted="at most 3",
            holds=held <= 3,
        ),
        Row(
            what=f"closing {_CONTAINERS} containers together",
            value=together,
            unit="s",
            compared_to=f"one by one: {alone:.2f} s",
            ratio=alone / together,
        ),
    ]


def _start(runtime: Runtime, image: str) -> list[hr.Container]:
    spec = hr.ContainerSpec(image=image)
    with ThreadPoolExecutor(4) as starters:
        containers = list(starters.map(lambda _: runtime.container(spec), range(_CONTAINERS)))
    for container in containers:
        container.exec(["true"]).check()
    return containers


def _closed_alone(name: str, image: str) -> tuple[float, int, float]:
    with hr.open_runtime(name) as opened:
        # opens what all containers share, such as a pool of connections to the engine
        _close(_start(opened, image))
        before = len(os.listdir("/proc/self/fd"))
        containers = _start(opened, image)
        held = (len(os.listdir("/proc/self/fd")) - before) / _CONTAINERS
        threads = sum(thread.name == "hyperruntime-poller" for thread in threading.enumerate())
        return held, threads, seconds(lambda: _close(containers))


def _close(containers: Sequence[hr.Container]) -> None:
    for container in containers:
        container.close()


def stall_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure the longest stall of an event loop while many commands begin at once, and end."""

    async def bare() -> None:
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()

    with runtime.container(hr.ContainerSpec(image=image, limits=hr.Limits(pids=4000))) as container:
        ours = asyncio.run(_longest_stall(lambda: container.aexec(["true"])))
    theirs = asyncio.run(_longest_stall(bare))
    return [
        Row(
            what=f"longest stall of an event loop, {_CALLS} `aexec` at once",
            value=ours * 1e3,
            unit="ms",
            compared_to=f"asyncio.create_subprocess_exec: {theirs * 1e3:.0f} ms",
            ratio=ours / theirs,
        )
    ]


async def _longest_stall(call: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds by which a task that sleeps was late at worst."""

    async def all_calls() -> None:
        await asyncio.gather(*(call() for _ in range(_CALLS)))

    return (await longest_gap(all_calls(), _BEAT_S))[1] - _BEAT_S
