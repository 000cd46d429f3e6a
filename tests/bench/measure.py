"""Measure actions in turn, so that a drift of the machine affects all alike; report medians."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        what: the name of the measurement.
        value: the median, in ``unit``.
        unit: the unit of ``value``.
        compared_to: the comparison in words, or "".
        ratio: the ratio to the comparison, in the sense of ``wanted``; None without a comparison.
        wanted: the promise in words, or "".
        holds: whether the promise holds here; None without a promise.
    """

    what: str
    value: float
    unit: str
    compared_to: str = ""
    ratio: float | None = None
    wanted: str = ""
    holds: bool | None = None


def under(what: str, value: float, unit: str, most: float, compared_to: str = "") -> Row:
    """Return a row whose promise is that the value, in its unit, is under a limit."""
    return Row(
        what=what,
        value=value,
        unit=unit,
        compared_to=compared_to,
        wanted=f"under {most:g} {unit}".strip(),
        holds=value < most,
    )


def in_turn(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Run each action once per round, in turn; return the median seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(rounds):
        for name, action in actions.items():
            begin = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def seconds(action: Callable[[], object]) -> float:
    """Return the seconds that an action takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def from_threads(action: Callable[[], object], threads: int, each: int) -> float:
    """Return the actions per second of many threads together."""
    workers = [
        threading.Thread(target=lambda: [action() for _ in range(each)]) for _ in range(threads)
    ]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * each / (time.perf_counter() - begin)


async def longest_gap(work: Awaitable[object], tick_s: float) -> tuple[float, float]:
    """Return the seconds that some work took, and the longest gap between two ticks of the event
    loop meanwhile.
    """
    gaps = [tick_s]

    async def tick() -> None:
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(tick_s)
            gaps.append(time.perf_counter() - begin)

    ticking = asyncio.create_task(tick())
    begin = time.perf_counter()
    await work
    took = time.perf_counter() - begin
    await asyncio.sleep(2 * tick_s)  # a tick that is late comes yet
    ticking.cancel()
    return took, max(gaps)


@contextmanager
def memory_growth() -> Iterator[list[float]]:
    """Yield a list that has, after the block, the growth of this process's peak memory in MiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown: list[float] = []
    yield grown
    grown.append((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def machine() -> str:
    """Describe this machine in one line."""
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown processor",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores ({cpu}), {memory:.0f} GiB, {system}"
