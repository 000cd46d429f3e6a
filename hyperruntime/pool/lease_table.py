"""The table of leases: who may use which place, and what is running for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import attrs

from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    ExecLostError,
    HyperRuntimeError,
    StaleLeaseError,
)
from hyperruntime.pool.members import Cell, Member
from hyperruntime.pool.values.slot import Slot

T = TypeVar("T")
_END_S = 30.0
_LOST = (ContainerLostError, ContainerStateError, ExecLostError)


@attrs.define(eq=False)
class Grant:
    """One lease, as the pool knows it.

    Attributes:
        slot: the handle that its holder has.
        cell: the place.
        verdict: makes the error that every call of it meets from now on, or None while it is good.
        running: calls under way.
        timer: ends it when it has been held too long.
    """

    slot: Slot
    cell: Cell
    verdict: Callable[[], HyperRuntimeError] | None = None
    running: set[asyncio.Task[Any]] = attrs.field(factory=set)
    timer: asyncio.TimerHandle | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out a call of the holder; the lease's end ends it with the lease's error.

        Raises:
            HyperRuntimeError: the lease ended meanwhile.
        """
        task = asyncio.ensure_future(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self.verdict is None or (caller is not None and caller.cancelling()):
                raise
            raise self.verdict() from None
        except _LOST as error:
            if self.verdict is None:
                raise
            raise self.verdict() from error

    async def end_calls(self) -> None:
        """End what is running, and wait until it has, but not for ever."""
        running = tuple(self.running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_END_S)


class LeaseTable:
    """All leases of a pool that have not been released."""

    def __init__(self) -> None:
        """Begin with none."""
        self._grants: dict[str, Grant] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._grants)

    def __iter__(self) -> Iterator[Grant]:
        """Return them."""
        return iter(tuple(self._grants.values()))

    def add(self, grant: Grant) -> None:
        """Note one."""
        self._grants[grant.slot.slot_id] = grant

    def find(self, slot: Slot) -> Grant:
        """Return the lease that a handle stands for, be it good or not.

        Raises:
            StaleLeaseError: it was released or expired, or this pool never gave it out.
        """
        if not isinstance(slot, Slot):
            raise StaleLeaseError(f"{slot!r} is no slot; use what acquire() returned")
        grant = self._grants.get(slot.slot_id)
        if grant is None or grant.slot != slot:
            raise stale(slot, "is not leased, or is another holder's by now")
        return grant

    def has(self, slot: Slot) -> bool:
        """Tell whether a handle stands for a lease that was not released."""
        grant = self._grants.get(slot.slot_id)
        return grant is not None and grant.slot == slot

    def good(self, slot: Slot) -> Grant:
        """Return the lease that a handle stands for.

        Raises:
            StaleLeaseError: as in :meth:`find`.
            HyperRuntimeError: its container ended, or the pool was stopped.
        """
        grant = self.find(slot)
        if grant.verdict is not None:
            raise grant.verdict()
        return grant

    def remove(self, grant: Grant) -> None:
        """Forget one."""
        del self._grants[grant.slot.slot_id]
        if grant.timer is not None:
            grant.timer.cancel()

    def of(self, member: Member) -> list[Grant]:
        """Return the leases in a container."""
        return [grant for grant in self._grants.values() if grant.cell.member is member]


def stale(slot: Slot, why: str) -> StaleLeaseError:
    """Return the error of a handle that is good no more."""
    return StaleLeaseError(
        f"slot {slot.slot_id} (lease {slot.generation} for {slot.task_id!r}) {why}; acquire another one"
    )
