"""Marks of process trees: one for each command and lane; the commands of a group share ranges of
marks.

A mark is a hard resource limit that Linux ignores, see :class:`MarkLimit` and
docs/design/exec.md#marks. Marks are numbers that count down from that limit's own value in the
container.
"""

from __future__ import annotations

import secrets
import threading

import attrs

# lanes have the lower numbers: a lane's mark must be above those of all its commands
_LANES = 2**45
_SPACE = 2**44
_BLOCK = 2**20  # numbers that a series reserves at a time
# the same as in supervisor.sh: 16 and 19 digits
_LEAST_LOCKS = 10**15
_LEAST_RESIDENT_BYTES = 10**18
_MOST_DIGITS = 20  # digits of 2**64

Span = tuple[int, int]  # first and last number
COMMANDS: Span = (_LANES, _LANES + 2 * _SPACE)  # those of all commands


@attrs.frozen
class MarkLimit:
    """A resource limit that Linux ignores, so that its hard value can mark processes.

    Every descendant inherits it, and only CAP_SYS_RESOURCE could raise it again. Source:
    getrlimit(2): RLIMIT_LOCKS has had no effect since Linux 2.4.25, RLIMIT_RSS none since 2.4.30.

    Attributes:
        option: letter of the ``ulimit`` option that sets it in the container's ``/bin/sh``.
        bash_option: letter of the ``ulimit`` option in bash.
        title: its name in ``/proc/PID/limits``, after ``Max``.
        unit: size of one ``ulimit`` step, in the unit of ``/proc/PID/limits``.
        top: the value from which marks count down, in ``ulimit`` steps.
    """

    option: str
    bash_option: str
    title: str
    unit: int
    top: int

    @classmethod
    def parse(cls, option: str, hard: str) -> MarkLimit | None:
        """Return the limit that a supervisor reports, or None if a real supervisor would not choose
        it.

        The supervisor runs in the container and is not trusted. The host kills by marks, so a mark
        must be a number that no other process has: far above any limit that an administrator sets.

        Args:
            option: letter of the ``ulimit`` option in the supervisor's shell.
            hard: the container's own hard value, as ``/proc/PID/limits`` prints it.
        """
        if option in ("x", "w"):  # bash and dash use different letters; busybox has used both
            limit = cls(option, "x", "file locks", 1, 2**62)
            least = _LEAST_LOCKS
        elif option == "m":
            limit = cls("m", "m", "resident set", 1024, 2**52)
            least = _LEAST_RESIDENT_BYTES
        else:
            return None
        if hard == "unlimited":
            return limit
        if not (
            hard.isascii() and hard.isdigit() and len(hard) <= _MOST_DIGITS and int(hard) >= least
        ):
            return None
        return attrs.evolve(limit, top=min(limit.top, int(hard) // limit.unit))

    def mark(self, number: int) -> Mark:
        """Return the mark of a number."""
        return Mark(self, self.top - number)

    def span(self, span: Span) -> Span:
        """Return the least and the greatest limit value of a range of numbers, as
        ``/proc/PID/limits`` prints it.
        """
        first, last = span
        return (self.top - last) * self.unit, (self.top - first) * self.unit


@attrs.frozen
class Mark:
    """One mark: a hard limit with a value.

    Attributes:
        limit: the limit that is set.
        steps: its value, in ``ulimit`` steps.
    """

    limit: MarkLimit
    steps: int

    @property
    def options(self) -> bytes:
        """The arguments of ``ulimit`` that set it in the container's ``/bin/sh``."""
        return b"-%s %d" % (self.limit.option.encode(), self.steps)

    @property
    def bash_options(self) -> bytes:
        """The arguments of ``ulimit`` that set it in bash."""
        return b"-%s %d" % (self.limit.bash_option.encode(), self.steps)

    @property
    def span(self) -> Span:
        """The range that holds only this mark's value, as ``/proc/PID/limits`` prints it."""
        value = self.steps * self.limit.unit
        return value, value


class MarkNumbers:
    """Mark numbers shared by a container's sessions; they start at random, so that no other
    container has the same.
    """

    def __init__(self) -> None:
        """Start at random numbers."""
        self._lock = threading.Lock()
        self._next = _LANES + secrets.randbelow(_SPACE)
        self._next_lane = secrets.randbelow(_SPACE)
        self._limit: MarkLimit | None = None
        self._groups: dict[str, list[MarkSeries]] = {}

    def agree(self, limit: MarkLimit) -> bool:
        """Keep the limit of the first session; return whether this limit is equal to it.

        The marks of all sessions count down from one value, because a group may span sessions. The
        first supervisor reports its limit before any command runs in the container; a command may
        have tampered with later reports.
        """
        with self._lock:
            self._limit = self._limit or limit
            return self._limit == limit

    def next(self, group: str | None = None) -> int:
        """Return an unused number for an exec, from the range of its group if it has one."""
        if group is None:
            return self.take(1)
        with self._lock:
            series = self._groups.setdefault(group, [])
            own = next((known for known in series if known.shared), None)
            if own is None:
                own = MarkSeries(self, shared=True)
                series.append(own)
        return own.next()

    def next_lane(self) -> int:
        """Return the number of a new lane, lower than that of every command."""
        with self._lock:
            self._next_lane += 1
            return self._next_lane - 1

    def take(self, count: int) -> int:
        """Reserve ``count`` consecutive numbers and return the first."""
        with self._lock:
            first, self._next = self._next, self._next + count
            return first

    def open_series(self, group: str | None = None) -> MarkSeries:
        """Return a new series, which belongs to ``group`` if one is given."""
        series = MarkSeries(self)
        if group is not None:
            with self._lock:
                self._groups.setdefault(group, []).append(series)
        return series

    def close_series(self, group: str, series: MarkSeries) -> None:
        """Forget a series of a group that has no living process."""
        with self._lock:
            others = [known for known in self._groups.pop(group, []) if known is not series]
            if others:
                self._groups[group] = others

    def group_series(self, group: str) -> list[MarkSeries]:
        """Return a group's series; empty if none of its execs has run."""
        with self._lock:
            return list(self._groups.get(group, ()))

    def leave_group(self, group: str) -> list[MarkSeries]:
        """Return a group's series and forget them; later execs of the group get new ones."""
        with self._lock:
            return self._groups.pop(group, [])

    def rejoin_group(self, group: str, series: list[MarkSeries]) -> None:
        """Give a group its series back, because processes of them may still live."""
        with self._lock:
            self._groups.setdefault(group, []).extend(series)


class MarkSeries:
    """Increasing numbers in ranges of their own: one range (two numbers) covers a million marks."""

    def __init__(self, numbers: MarkNumbers, *, shared: bool = False) -> None:
        """Make a series without numbers.

        Args:
            numbers: source of its ranges.
            shared: whether all execs of a group use it.
        """
        self.shared = shared
        self._numbers = numbers
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._next = 0

    def next(self) -> int:
        """Return the next number, larger than all earlier ones."""
        with self._lock:
            if not self._spans or self._next > self._spans[-1][1]:
                first = self._numbers.take(_BLOCK)
                self._spans.append((first, first + _BLOCK - 1))
                self._next = first
            self._next += 1
            return self._next - 1

    def spans(self) -> tuple[Span, ...]:
        """Return the ranges reserved so far; they hold every number that was returned."""
        with self._lock:
            return tuple(self._spans)
