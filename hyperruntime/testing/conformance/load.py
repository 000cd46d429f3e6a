"""How slow the machine is now, so that a loaded machine fails no check: time bounds grow with it.

Each bound in a check is the time that suffices on a quiet machine. :class:`Load` multiplies it by a
factor: 1 on a quiet machine, more on a loaded one. It measures at the start of the suite, and again
when a bound is missed, because the load may have begun later. A slow engine on a quiet machine
therefore fails.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable

import attrs

from hyperruntime.host.process import DEVNULL, spawn, wait_until

MAX_FACTOR = 10.0
_STARTS = 6
_TIMES = 12
_AT_ONCE = 8  # a single process gets a processor at once, even on a loaded machine
_NAP_S = 0.005
# Uses a processor for about 10 ms.
_COUNT = ("/bin/sh", "-c", "i=0; while [ $i -lt 10000 ]; do i=$((i + 1)); done")


@attrs.frozen(kw_only=True)
class Measurement:
    """Durations of small operations, in seconds; time bounds are made of many such operations.

    Attributes:
        start_median_s: start and end of eight processes at once that each compute for about 10 ms.
        start_worst_s: the longest of several.
        late_median_s: lateness of a sleep of 5 ms.
        late_worst_s: the longest of several.
        write_median_s: writing a small file to the disk.
        write_worst_s: the longest of several.
    """

    start_median_s: float
    start_worst_s: float
    late_median_s: float
    late_worst_s: float
    write_median_s: float
    write_worst_s: float


# A machine is quiet up to these values. The 4 cores on which they were chosen need half of them or
# less.
QUIET = Measurement(
    start_median_s=0.070,
    start_worst_s=0.140,
    late_median_s=0.002,
    late_worst_s=0.030,
    write_median_s=0.020,
    write_worst_s=0.150,
)


def load_factor(measured: Measurement, quiet: Measurement = QUIET) -> float:
    """Return how many times longer than on a quiet machine an operation may take: from 1 to
    ``MAX_FACTOR``.

    Args:
        measured: the measurement of this machine.
        quiet: the highest values at which a machine counts as quiet.
    """
    found: tuple[float, ...] = attrs.astuple(measured)
    usual: tuple[float, ...] = attrs.astuple(quiet)
    return min(
        MAX_FACTOR, max(1.0, *(one / other for one, other in zip(found, usual, strict=True)))
    )


def measure_load() -> Measurement:
    """Measure this machine for about half a second."""
    starts = _times(_start, _STARTS)
    lates = _times(_nap)
    with tempfile.TemporaryFile() as file:
        writes = _times(lambda: _write(file.fileno()))
    return Measurement(
        start_median_s=statistics.median(starts),
        start_worst_s=max(starts),
        late_median_s=max(0.0, statistics.median(lates) - _NAP_S),
        late_worst_s=max(0.0, max(lates) - _NAP_S),
        write_median_s=statistics.median(writes),
        write_worst_s=max(writes),
    )


class Load:
    """The load of the machine and the time bounds that follow from it.

    Attributes:
        factor: the factor of all bounds: the highest of all measurements so far.
        first: the factor of the first measurement.
    """

    def __init__(self, measure: Callable[[], Measurement] = measure_load) -> None:
        """Measure for the first time.

        Args:
            measure: measures the machine.
        """
        self._measure = measure
        self._lock = threading.Lock()
        self.factor = self.first = load_factor(measure())

    def bound(self, quiet_s: float) -> float:
        """Return the time bound in seconds that holds now, for one that holds on a quiet
        machine.
        """
        return quiet_s * self.factor

    def allows(self, took_s: float, quiet_s: float) -> bool:
        """Return whether a duration is within its bound; measure again before the answer is no.

        Args:
            took_s: the duration, in seconds.
            quiet_s: the bound on a quiet machine, in seconds.
        """
        if took_s < self.bound(quiet_s):
            return True
        self.measure_again()
        return took_s < self.bound(quiet_s)

    def wait_until(
        self, condition: Callable[[], bool], quiet_s: float, interval_s: float = 0.05
    ) -> bool:
        """Poll a condition until it holds or the bound has passed; return whether it holds.

        Args:
            condition: called at least once.
            quiet_s: the bound on a quiet machine, in seconds.
            interval_s: seconds between two calls.
        """
        return self.wait(lambda timeout_s: wait_until(condition, timeout_s, interval_s), quiet_s)

    def wait(self, attempt: Callable[[float], bool], quiet_s: float) -> bool:
        """Wait until an attempt succeeds or the bound has passed; return whether one succeeded.

        Args:
            attempt: waits for at most the given seconds, and returns whether it succeeded.
            quiet_s: the bound on a quiet machine, in seconds.
        """
        started = time.monotonic()
        while not attempt(self.bound(quiet_s) - (time.monotonic() - started)):
            before = self.factor
            self.measure_again()
            if self.factor <= before:
                return False
        return True

    def measure_again(self) -> None:
        """Measure again; the factor grows or stays."""
        with self._lock:
            self.factor = max(self.factor, load_factor(self._measure()))

    def __str__(self) -> str:
        """Return a line for users."""
        if self.factor < 1.05:
            return "this machine is quiet: time bounds are the strict ones"
        later = "" if self.factor == self.first else f" ({self.first:.1f} times at the start)"
        return (
            f"this machine is loaded or slow: time bounds are {self.factor:.1f} times the "
            f"strict ones{later}"
        )


def _times(operation: Callable[[], object], times: int = _TIMES) -> list[float]:
    found = []
    for _ in range(times):
        started = time.monotonic()
        operation()
        found.append(time.monotonic() - started)
    return found


def _start() -> None:
    started = [
        spawn(_COUNT, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL) for _ in range(_AT_ONCE)
    ]
    for process in started:
        process.wait()


def _nap() -> None:
    time.sleep(_NAP_S)


def _write(descriptor: int) -> None:
    os.pwrite(descriptor, bytes(4096), 0)
    os.fsync(descriptor)
