"""The containers of a pool, their slots, and failures to start: their state only; nothing here
blocks or waits.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from hyperruntime.errors import (
    DeviceNotFoundError,
    EngineUnavailableError,
    ImageError,
    SpecError,
    StorageError,
    UnsupportedOptionError,
)

if TYPE_CHECKING:
    from hyperruntime.container import Container
    from hyperruntime.pool.slots.slot_exec import SlotExec

# a start above _SLOW times the quickest one multiplies the limit by _FEWER
_SLOW = 2.0
_FEWER = 0.9
_FIRST_DELAY_S = 0.25
_MAX_DELAY_S = 15.0
_TRIES = 3
_PERMANENT = (
    DeviceNotFoundError,
    EngineUnavailableError,
    ImageError,
    SpecError,
    StorageError,
    UnsupportedOptionError,
)


class CellState(enum.Enum):
    """The state of a slot."""

    FREE = "free"  # verified clean
    LEASED = "leased"
    KEPT = "kept"  # released without a reset, for the same task
    CLEANING = "cleaning"
    QUARANTINED = "quarantined"  # not clean: no more leases


@attrs.define(eq=False)
class Cell:
    """One slot of a container, leased again and again.

    Attributes:
        member: its container.
        slot_exec: runs its commands; a new object after each reset.
        state: its state.
        generation: how often it has been leased.
        task_id: the task of its present or last lease.
        kept_since: time of the event loop when it was released without a reset.
    """

    member: PoolMember
    slot_exec: SlotExec
    state: CellState = CellState.FREE
    generation: int = 0
    task_id: str = ""
    kept_since: float = 0.0


@attrs.define(eq=False)
class PoolMember:
    """One container of a pool.

    Attributes:
        container: the container.
        born: time of the event loop when it was ready.
        idle_since: time of the event loop when it was last in use.
        asked: time of the event loop of its last health check; infinite during a check.
        cells: its slots.
        draining: why it gets no more leases, or "".
        lost: whether it ended by itself.
    """

    container: Container
    born: float = 0.0
    idle_since: float = 0.0
    asked: float = 0.0
    cells: list[Cell] = attrs.field(factory=list)
    draining: str = ""
    lost: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether a slot is leased or kept for a task."""
        return any(cell.state in (CellState.LEASED, CellState.KEPT) for cell in self.cells)

    @property
    def is_idle(self) -> bool:
        """Whether no slot is leased, kept for a task, or being cleaned."""
        return not any(
            cell.state in (CellState.LEASED, CellState.KEPT, CellState.CLEANING)
            for cell in self.cells
        )

    def count(self, state: CellState) -> int:
        """Return how many slots are in a state."""
        return sum(cell.state is state for cell in self.cells)


class Roster:
    """The containers that have started and not ended; chooses the slot to lease next.

    Attributes:
        members: the containers, the oldest first.
    """

    def __init__(self, max_busy: int) -> None:
        """Begin without containers.

        Args:
            max_busy: how many containers may be in use at the same time.
        """
        self._max_busy = max_busy
        self.members: list[PoolMember] = []

    def serving(self) -> list[PoolMember]:
        """Return the containers that are not draining."""
        return [member for member in self.members if not member.draining]

    def cells(self, state: CellState) -> Iterator[Cell]:
        """Return the slots in a state."""
        return (cell for member in self.members for cell in member.cells if cell.state is state)

    def busy(self) -> int:
        """Return how many containers have a leased or kept slot."""
        return sum(member.is_busy for member in self.members)

    def next_free(self) -> Cell | None:
        """Return the slot to lease next; None if none is free, or too many containers are in use.

        It is in the container with the most leases, so that other containers become unused and can
        end.
        """
        free = [member for member in self.serving() if member.count(CellState.FREE)]
        best = max(
            free,
            key=lambda member: member.count(CellState.LEASED) + member.count(CellState.KEPT),
            default=None,
        )
        if best is None or (not best.is_busy and self.busy() >= self._max_busy):
            return None
        return next(cell for cell in best.cells if cell.state is CellState.FREE)

    def kept_for(self, task_id: str) -> Cell | None:
        """Return the slot that a task released without a reset, or None."""
        return next((cell for cell in self.cells(CellState.KEPT) if cell.task_id == task_id), None)


class StartBackoff:
    """The failures to start since the last success.

    Attributes:
        error: the latest failure, or None.
        not_before: time of the event loop of the next try.
        is_news: whether no waiting acquire has received the error yet.
    """

    def __init__(self) -> None:
        """Begin without failures."""
        self.error: Exception | None = None
        self.not_before = 0.0
        self.is_news = False
        self._failures = 0

    def note(self, error: Exception, now: float) -> float:
        """Record a failure; return the seconds until the next try.

        Args:
            error: the failure.
            now: the present time of the event loop.
        """
        delay_s: float = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2**self._failures)
        self.error = error
        self.not_before = now + delay_s
        self.is_news = True
        self._failures += 1
        return delay_s

    @property
    def is_hopeless(self) -> bool:
        """Whether waiting acquires should fail: the error is permanent, or the third try failed."""
        return self.error is not None and (
            isinstance(self.error, _PERMANENT) or self._failures >= _TRIES
        )


class StartLimit:
    """How many containers may start at once: more while starts stay quick, fewer when they become
    slow or fail.

    Additive increase and multiplicative decrease by the time that a start takes.
    Source: Brakmo and Peterson, "TCP Vegas", 1995.

    Attributes:
        now: the present limit, from 1 to ``most``.
    """

    def __init__(self, most: int) -> None:
        """Begin with one; the limit doubles with each round of starts until the first slow one.

        Args:
            most: the limit's upper bound.
        """
        self._most = most
        self._limit = 1.0
        self._quickest_s = math.inf
        self._doubles = True

    @property
    def now(self) -> int:
        """The present limit."""
        return int(self._limit)

    def note(self, took_s: float, starting: int) -> None:
        """Learn from a start.

        Args:
            took_s: seconds that it took.
            starting: how many were starting, with this one.
        """
        if starting == 1 and took_s > self._quickest_s:
            # no other start is to blame: the machine is slower now
            self._quickest_s = (self._quickest_s + took_s) / 2
        self._quickest_s = min(took_s, self._quickest_s)
        if took_s > _SLOW * self._quickest_s:
            self._limit, self._doubles = max(1.0, self._limit * _FEWER), False
        elif starting >= self.now:
            self._limit = min(
                float(self._most), self._limit + (1 if self._doubles else 1 / self._limit)
            )

    def note_failure(self) -> None:
        """Learn from a start that failed."""
        self._limit, self._doubles = max(1.0, self._limit / 2), False
