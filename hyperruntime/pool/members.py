"""The containers of a pool and the places in them: their states, and nothing that waits."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from hyperruntime.container import Container
    from hyperruntime.pool.slots.slot_exec import SlotExec


class CellState(enum.Enum):
    """What a place is doing."""

    FREE = "free"  # verified clean
    LEASED = "leased"
    KEPT = "kept"  # released as it was, for the same task
    CLEANING = "cleaning"
    QUARANTINED = "quarantined"  # could not be made clean: no more leases


@attrs.define(eq=False)
class Cell:
    """One place of a container, leased again and again.

    Attributes:
        member: its container.
        place: where its commands run; a new one after each reset.
        state: what it is doing.
        generation: how often it has been leased.
        task_id: for whom it is or was leased.
        kept_since: time of the event loop when it was released as it was.
    """

    member: Member
    place: SlotExec
    state: CellState = CellState.FREE
    generation: int = 0
    task_id: str = ""
    kept_since: float = 0.0


@attrs.define(eq=False)
class Member:
    """One container of a pool.

    Attributes:
        container: it.
        born: time of the event loop when it was ready.
        cells: its places.
        idle_since: time of the event loop when it was last in use.
        asked: time of the event loop when it was last asked whether it answers.
        draining: why it gets no more leases, or "".
        lost: whether it ended by itself.
    """

    container: Container
    born: float
    idle_since: float
    asked: float = 0.0
    cells: list[Cell] = attrs.field(factory=list)
    draining: str = ""
    lost: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether somebody holds a place of it."""
        return any(cell.state in (CellState.LEASED, CellState.KEPT) for cell in self.cells)

    @property
    def is_settled(self) -> bool:
        """Whether nobody holds a place of it and none is being cleaned."""
        return not any(cell.state in (CellState.LEASED, CellState.KEPT, CellState.CLEANING) for cell in self.cells)

    def count(self, state: CellState) -> int:
        """Return how many places are in a state."""
        return sum(cell.state is state for cell in self.cells)


class Roster:
    """The containers that are there, and which place is given out next."""

    def __init__(self, max_busy: int) -> None:
        """Begin with none.

        Args:
            max_busy: how many containers may be in use at the same time.
        """
        self._max_busy = max_busy
        self._members: dict[str, Member] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Return them, the oldest first."""
        return iter(tuple(self._members.values()))

    def __contains__(self, member: Member) -> bool:
        """Tell whether it is one of them still."""
        return self._members.get(member.container.name) is member

    def add(self, member: Member) -> None:
        """Take one in."""
        self._members[member.container.name] = member

    def discard(self, member: Member) -> None:
        """Take one out."""
        if member in self:
            del self._members[member.container.name]

    def serving(self) -> list[Member]:
        """Return those that take leases."""
        return [member for member in self._members.values() if not member.draining]

    def cells(self, state: CellState) -> Iterator[Cell]:
        """Return the places in a state."""
        return (cell for member in tuple(self._members.values()) for cell in member.cells if cell.state is state)

    def busy(self) -> int:
        """Return how many are in use."""
        return sum(member.is_busy for member in self._members.values())

    def next_free(self) -> Cell | None:
        """Return the place to lease next: in the container that is used most already, so that others may end."""
        best: Cell | None = None
        best_leased = -1
        for member in self._members.values():
            if member.draining:
                continue
            leased, free = 0, None
            for cell in member.cells:
                if cell.state is CellState.FREE:
                    free = free or cell
                elif cell.state in (CellState.LEASED, CellState.KEPT):
                    leased += 1
            if free is not None and leased > best_leased:
                best, best_leased = free, leased
        if best is not None and best_leased == 0 and self.busy() >= self._max_busy:
            return None
        return best

    def kept_for(self, task_id: str) -> Cell | None:
        """Return the place that a task released as it was."""
        return next((cell for cell in self.cells(CellState.KEPT) if cell.task_id == task_id), None)
