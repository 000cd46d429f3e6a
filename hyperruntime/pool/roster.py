"""The containers of a pool, their slots, and the state of both; nothing here blocks or waits."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from hyperruntime.container import Container
    from hyperruntime.pool.slots.slot_exec import SlotExec


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
    def is_settled(self) -> bool:
        """Whether no slot is leased, kept for a task, or being cleaned."""
        return not any(cell.state in (CellState.LEASED, CellState.KEPT, CellState.CLEANING) for cell in self.cells)

    def count(self, state: CellState) -> int:
        """Return how many slots are in a state."""
        return sum(cell.state is state for cell in self.cells)


class Roster:
    """The containers that have started and not ended; chooses the slot to lease next."""

    def __init__(self, max_busy: int) -> None:
        """Begin without containers.

        Args:
            max_busy: how many containers may be in use at the same time.
        """
        self._max_busy = max_busy
        self._members: dict[str, PoolMember] = {}

    def __len__(self) -> int:
        """Return the number of containers."""
        return len(self._members)

    def __iter__(self) -> Iterator[PoolMember]:
        """Iterate over a copy of the containers, the oldest first."""
        return iter(tuple(self._members.values()))

    def __contains__(self, member: PoolMember) -> bool:
        """Return whether this container is in the roster."""
        return self._members.get(member.container.name) is member

    def add(self, member: PoolMember) -> None:
        """Add a container."""
        self._members[member.container.name] = member

    def discard(self, member: PoolMember) -> None:
        """Remove a container if it is in the roster."""
        if member in self:
            del self._members[member.container.name]

    def serving(self) -> list[PoolMember]:
        """Return the containers that are not draining."""
        return [member for member in self._members.values() if not member.draining]

    def cells(self, state: CellState) -> Iterator[Cell]:
        """Return the slots in a state."""
        return (cell for member in tuple(self._members.values()) for cell in member.cells if cell.state is state)

    def busy(self) -> int:
        """Return how many containers have a leased or kept slot."""
        return sum(member.is_busy for member in self._members.values())

    def next_free(self) -> Cell | None:
        """Return the slot to lease next; None if none is free, or too many containers are in use.

        It is in the container with the most leases, so that other containers become unused and can end.
        """
        free = [member for member in self.serving() if member.count(CellState.FREE)]
        best = max(free, key=lambda member: member.count(CellState.LEASED) + member.count(CellState.KEPT), default=None)
        if best is None or (not best.is_busy and self.busy() >= self._max_busy):
            return None
        return next(cell for cell in best.cells if cell.state is CellState.FREE)

    def kept_for(self, task_id: str) -> Cell | None:
        """Return the slot that a task released without a reset, or None."""
        return next((cell for cell in self.cells(CellState.KEPT) if cell.task_id == task_id), None)
