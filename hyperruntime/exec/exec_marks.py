"""Marks of what a command starts: one for each command and lane, in one range for all commands of a group.

A mark is a hard resource limit that Linux ignores, see :class:`MarkLimit` and docs/decisions/0002-exec.md. Marks are
numbers that count down from that limit's own value in the container.
"""

from __future__ import annotations

import secrets
import threading

import attrs

_LANES = 2**45  # numbers of lanes come first: a lane's mark must be above those of all commands that it ever runs
_SPACE = 2**44
_BLOCK = 2**20  # numbers that a group takes at a time
_LEAST_LOCKS, _LEAST_RESIDENT_BYTES = 10**15, 10**18  # as supervisor.sh has them: 16 and 19 digits
_MOST_DIGITS = 20  # of 2**64

Span = tuple[int, int]  # first and last number


@attrs.frozen
class MarkLimit:
    """A resource limit that Linux ignores, so that its hard value can mark processes.

    Every descendant inherits it, and only CAP_SYS_RESOURCE could raise it again. Source: getrlimit(2): RLIMIT_LOCKS has
    had no effect since Linux 2.4.25, RLIMIT_RSS none since 2.4.30.

    Attributes:
        option: letter of ``ulimit`` that sets it in the container's ``/bin/sh``.
        bash_option: the same in bash.
        title: its first words in a line of ``/proc/PID/limits``.
        unit: how much of what ``/proc/PID/limits`` counts is one step of ``ulimit``.
        top: the mark from which numbers count down, in steps.
    """

    option: str
    bash_option: str
    title: str
    unit: int
    top: int

    @classmethod
    def parse(cls, option: str, hard: str) -> MarkLimit | None:
        """Return the limit that a supervisor has chosen, or None where no supervisor would choose it.

        The supervisor runs in the container and may lie. The host kills by marks, so they must be numbers that no other
        process has: far above any limit that somebody sets on purpose.

        Args:
            option: the letter of its shell. hard: the container's own hard value, as ``/proc/PID/limits`` prints it.
        """
        if option in ("x", "w"):  # bash and dash have different letters, busybox has had both
            limit, least = cls(option, "x", "file locks", 1, 2**62), _LEAST_LOCKS
        elif option == "m":
            limit, least = cls("m", "m", "resident set", 1024, 2**52), _LEAST_RESIDENT_BYTES
        else:
            return None
        if hard == "unlimited":
            return limit
        if not (hard.isascii() and hard.isdigit() and len(hard) <= _MOST_DIGITS and int(hard) >= least):
            return None
        return attrs.evolve(limit, top=min(limit.top, int(hard) // limit.unit))

    def mark(self, number: int) -> Mark:
        """Return the mark of a number."""
        return Mark(self, self.top - number)

    def span(self, span: Span) -> Span:
        """Return the least and the greatest value, as ``/proc/PID/limits`` prints it, of a range of numbers."""
        first, last = span
        return (self.top - last) * self.unit, (self.top - first) * self.unit


@attrs.frozen
class Mark:
    """One hard limit.

    Attributes:
        limit: which.
        steps: its value, as ``ulimit`` takes it.
    """

    limit: MarkLimit
    steps: int

    @property
    def options(self) -> bytes:
        """What follows ``ulimit`` in the container's ``/bin/sh`` to set it."""
        return b"-%s %d" % (self.limit.option.encode(), self.steps)

    @property
    def bash_options(self) -> bytes:
        """The same in bash."""
        return b"-%s %d" % (self.limit.bash_option.encode(), self.steps)

    @property
    def span(self) -> Span:
        """The range of values, as ``/proc/PID/limits`` prints them, that is this mark alone."""
        value = self.steps * self.limit.unit
        return value, value


class MarkNumbers:
    """Numbers shared by a container's sessions; no other container on the machine has the same."""

    def __init__(self) -> None:
        """Begin at random numbers."""
        self._lock = threading.Lock()
        self._next = _LANES + secrets.randbelow(_SPACE)
        self._next_lane = secrets.randbelow(_SPACE)
        self._limit: MarkLimit | None = None
        self._groups: dict[str, list[MarkSeries]] = {}

    def agree(self, limit: MarkLimit) -> bool:
        """Take the limit of the first session; return whether this one is equal.

        Marks of all sessions count down from one value: a group may be of several. The first supervisor spoke before
        any command ran in the container; what a later one says, a command may have made it say.
        """
        with self._lock:
            self._limit = self._limit or limit
            return self._limit == limit

    def next(self, group: str | None = None) -> int:
        """Return a number that was not given out yet, of a group's range where there is a group."""
        if group is not None:
            return self._series(group).next()
        return self.take(1)

    def next_lane(self) -> int:
        """Return the number of a new lane, less than that of every command."""
        with self._lock:
            self._next_lane += 1
            return self._next_lane - 1

    def take(self, count: int) -> int:
        """Return the first of so many numbers in a row."""
        with self._lock:
            first, self._next = self._next, self._next + count
            return first

    def open_series(self, group: str | None = None) -> MarkSeries:
        """Return a new range of its own, which counts as the group's too."""
        series = MarkSeries(self)
        if group is not None:
            with self._lock:
                self._groups.setdefault(group, []).append(series)
        return series

    def close_series(self, series: MarkSeries) -> None:
        """Forget a range of which nothing lives any more."""
        with self._lock:
            for name, known in tuple(self._groups.items()):
                kept = [other for other in known if other is not series]
                if kept != known:
                    self._set_group(name, kept)

    def leave_group(self, group: str) -> list[MarkSeries]:
        """Return a group's ranges and forget them: what is started from now on gets others."""
        with self._lock:
            return self._groups.pop(group, [])

    def rejoin_group(self, group: str, series: list[MarkSeries]) -> None:
        """Take ranges back of which something may still live."""
        with self._lock:
            self._groups.setdefault(group, []).extend(series)

    def _series(self, group: str) -> MarkSeries:
        with self._lock:
            series = self._groups.setdefault(group, [])
            own = next((known for known in series if known.shared), None)
            if own is None:
                own = MarkSeries(self, shared=True)
                series.append(own)
            return own

    def _set_group(self, name: str, series: list[MarkSeries]) -> None:
        if series:
            self._groups[name] = series
        else:
            del self._groups[name]


class MarkSeries:
    """Growing numbers in few ranges of their own, so that two numbers tell a million marks from all others."""

    def __init__(self, numbers: MarkNumbers, *, shared: bool = False) -> None:
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
