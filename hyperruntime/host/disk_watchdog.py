"""Watch the disk use of a container, and end it when it exceeds its limit or the host's disk is
almost full.

No engine limits disk use on every machine: mounts are plain directories, and quotas need root and a
file system that supports them. One thread per container checks; a check is cheap while the free
space does not change. Between two checks a container can write more than its limit. Design:
docs/design/containers.md#disk.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import attrs

from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.host.disk_usage import LEAST_BYTES, measure
from hyperruntime.host.process_tree import Namespace
from hyperruntime.units import MIB, format_size

RESERVE_BYTES = 256 * MIB
_TICK_S = 0.1
_CALM_S = 1.0  # least time between two counts; shorter if much space was taken since the last one
_DUTY = 5  # a slow count is repeated after this many times its duration at the earliest
_RETURN_S = 3.0  # an ended container frees its space with a delay

End = Callable[[str, str], None]


@attrs.frozen
class Free:
    """The free space of a file system.

    Attributes:
        space: free bytes.
        names: free inodes: how many more files it can hold.
    """

    space: int
    names: int


class DiskWatch:
    """The watch over the disk use of one container, with a thread of its own until :meth:`stop`.

    Attributes:
        used_bytes: disk use at the last count.
    """

    def __init__(
        self, limit_bytes: int, tops: Sequence[str], namespace: Namespace | None, end: End
    ) -> None:
        """Start the watch.

        Args:
            limit_bytes: limit for all directories together.
            tops: directories of the host that the container can write.
            namespace: its processes, or None if they are not visible from here.
            end: ends the container; called with the reason and the exceeded limit, or "" if it may
                not be the cause.
        """
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._tops = tops
        self._namespace = namespace
        self._end = end
        self._stopped = threading.Event()
        self._places = (*tops, *(namespace.tmpfs if namespace is not None else ()))
        self._begun: Mapping[int, Free] = free_space(tops)
        self._counted: Mapping[int, Free] = free_space(self._places)
        self._reserve = {
            device: min(RESERVE_BYTES, free.space // 2) for device, free in self._begun.items()
        }
        self._next = 0.0
        with (watched := _watched.get()).lock:
            watched.watches.append(self)
        threading.Thread(target=self._run, name="hyperruntime-disk", daemon=True).start()

    def stop(self) -> None:
        """Stop the watch; a check in progress may still finish."""
        self._stopped.set()
        with (watched := _watched.get()).lock, suppress(ValueError):  # it was stopped before
            watched.watches.remove(self)

    def _run(self) -> None:
        while not self._stopped.wait(_TICK_S):
            why, limit = self._look()
            if why and not self._stopped.is_set():
                self.stop()
                self._end(why, limit)

    def _look(self) -> tuple[str, str]:
        """Return why the container must end and the exceeded limit; two empty strings if it may
        live.

        A container below its own limit has not exceeded it, even if the host's disk is full: the
        limit is then "".
        """
        now = free_space(self._places)
        low = next(
            (device for device, free in now.items() if free.space < self._reserve.get(device, 0)),
            None,
        )
        if (low is not None or time.monotonic() >= self._due(now)) and (why := self._count(now)):
            return why, "disk_bytes"
        if low is None:
            return "", ""
        return self._judge_low(low, now[low]), ""

    def _due(self, now: Mapping[int, Free]) -> float:
        """Return the time of the next count: earlier if half of its remaining limit may have been
        taken.
        """
        room = max(MIB, (self._limit_bytes - self.used_bytes) // 2)
        taken = sum(
            _taken(self._counted[device], free)
            for device, free in now.items()
            if device in self._counted
        )
        return self._next - (_CALM_S if taken >= room else 0.0)

    def _count(self, now: Mapping[int, Free]) -> str:
        started = time.monotonic()
        use = measure(self._tops, self._namespace, self._limit_bytes)
        # a file that is replaced during a count may be counted twice
        if use.used_bytes > self._limit_bytes:
            use = min(
                use,
                measure(self._tops, self._namespace, self._limit_bytes),
                key=lambda use: use.used_bytes,
            )
        self.used_bytes = use.used_bytes
        self._counted = now
        took = time.monotonic() - started
        self._next = started + took + max(_CALM_S, _DUTY * took)
        if use.hidden:  # then all space that the file systems lost since the start counts
            lost = sum(
                _taken(self._begun[device], free)
                for device, free in now.items()
                if device in self._begun
            )
            self.used_bytes = max(self.used_bytes, lost)
        if self.used_bytes <= self._limit_bytes:
            return ""
        least = f"at least {self.used_bytes} bytes ({format_size(self.used_bytes)})"
        return f"its files took {least} of limits.disk_bytes={self._limit_bytes}"

    def _judge_low(self, device: int, free: Free) -> str:
        """Return why this container must end: only the largest ends, and the next one not before
        its space is freed.
        """
        with (watched := _watched.get()).lock:
            mine = [watch for watch in watched.watches if device in watch._begun]  # noqa: SLF001 - the same class
            if not mine or max(mine, key=lambda watch: watch.used_bytes) is not self:
                return ""
            if time.monotonic() < watched.ended.get(device, 0.0) + _RETURN_S:
                return ""
            watched.ended[device] = time.monotonic()
        return (
            f"the disk has only {format_size(free.space)} left, and its files took "
            f"{format_size(self.used_bytes)}"
        )


@attrs.frozen
class _Watched:
    """The watches of this process.

    Attributes:
        lock: for the two others.
        watches: those that are not stopped.
        ended: device to the time when a container ended for it.
    """

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    watches: list[DiskWatch] = attrs.field(factory=list)
    ended: dict[int, float] = attrs.field(factory=dict)


_watched: PerProcess[_Watched] = PerProcess(_Watched)


def free_space(tops: Sequence[str]) -> dict[int, Free]:
    """Return the free space of the file systems of directories, by device; missing directories are
    skipped.
    """
    found = {}
    for top in tops:
        try:
            facts = os.statvfs(top)
            found[os.stat(top).st_dev] = Free(facts.f_bavail * facts.f_frsize, facts.f_favail)
        except OSError:
            continue
    return found


def _taken(before: Free, now: Free) -> int:
    return max(before.space - now.space, (before.names - now.names) * LEAST_BYTES, 0)
