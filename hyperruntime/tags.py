"""Numbers that mark what a command starts: one for each command, in one range for all commands of a group.

A mark is a number that counts down from a limit that only the container's inside knows, see
:func:`hyperruntime.script.lane_script`. Imports nothing of the project.
"""

from __future__ import annotations

import secrets
import threading

_SPACE = 2**44
_BLOCK = 2**20  # numbers that a group takes at a time

Span = tuple[int, int]  # first and last number


class TagNumbers:
    """Numbers shared by a container's sessions; they are no other container's either."""

    def __init__(self) -> None:
        """Begin somewhere at random."""
        self._lock = threading.Lock()
        self._next = secrets.randbelow(_SPACE)
        self._groups: dict[str, list[TagSeries]] = {}

    def next(self, group: str | None = None) -> int:
        """Return a number that was not given out yet, of a group's range where there is a group."""
        if group is not None:
            return self._series(group).next()
        return self.take(1)

    def take(self, count: int) -> int:
        """Return the first of so many numbers in a row."""
        with self._lock:
            first, self._next = self._next, self._next + count
            return first

    def open_series(self, group: str | None = None) -> TagSeries:
        """Return a new range of its own, which counts as the group's too."""
        series = TagSeries(self)
        if group is not None:
            with self._lock:
                self._groups.setdefault(group, []).append(series)
        return series

    def close_series(self, series: TagSeries) -> None:
        """Forget a range of which nothing lives any more."""
        with self._lock:
            for name, known in tuple(self._groups.items()):
                kept = [other for other in known if other is not series]
                if kept != known:
                    self._set_group(name, kept)

    def leave_group(self, group: str) -> list[TagSeries]:
        """Return a group's ranges and forget them: what is started from now on gets others."""
        with self._lock:
            return self._groups.pop(group, [])

    def rejoin_group(self, group: str, series: list[TagSeries]) -> None:
        """Take ranges back of which something may still live."""
        with self._lock:
            self._groups.setdefault(group, []).extend(series)

    def _series(self, group: str) -> TagSeries:
        with self._lock:
            series = self._groups.setdefault(group, [])
            own = next((known for known in series if known.shared), None)
            if own is None:
                own = TagSeries(self, shared=True)
                series.append(own)
            return own

    def _set_group(self, name: str, series: list[TagSeries]) -> None:
        if series:
            self._groups[name] = series
        else:
            del self._groups[name]


class TagSeries:
    """Growing numbers in few ranges of their own, so that two numbers tell a million marks from all others."""

    def __init__(self, numbers: TagNumbers, *, shared: bool = False) -> None:
        """Make one without a number.

        Args:
            numbers: where its ranges come from.
            shared: whether it is of all execs of a group.
        """
        self.shared = shared
        self._numbers = numbers
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._next = 0

    def next(self) -> int:
        """Return the next number, larger than all before."""
        with self._lock:
            if not self._spans or self._next > self._spans[-1][1]:
                first = self._numbers.take(_BLOCK)
                self._spans.append((first, first + _BLOCK - 1))
                self._next = first
            self._next += 1
            return self._next - 1

    def spans(self) -> tuple[Span, ...]:
        """Return the ranges that hold every number that it has given and will give."""
        with self._lock:
            return tuple(self._spans)
