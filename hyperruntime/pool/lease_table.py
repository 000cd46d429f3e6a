"""The table of leases: which handles are valid, and which calls run for each lease."""

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
from hyperruntime.pool.roster import Cell
from hyperruntime.pool_values.results import Slot

T = TypeVar("T")
_END_S = 30.0
_LOST = (ContainerLostError, ContainerStateError, ExecLostError)


class RunningCall:
    """One running call; it runs in the task of its caller, because a task of its own costs two
    turns of the loop.

    Attributes:
        done: set when the call has ended.
    """

    def __init__(self) -> None:
        """Begin a call in the current task."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling()
        self._is_cancelled = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        """Cancel the call; nothing if it was cancelled before."""
        if not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()

    def end(self) -> bool:
        """End the call; return whether :meth:`cancel` was called, and no other code cancelled its
        task.
        """
        self.done.set_result(None)
        return self._is_cancelled and self._task.uncancel() <= self._before


@attrs.define(eq=False)
class Grant:
    """One lease, as the pool knows it.

    Attributes:
        slot: the handle of its holder.
        cell: the leased slot.
        verdict: makes the error for all its calls once the lease has ended; None while the lease is
            valid.
        running: the calls that are running.
        timer: ends the lease at its timeout; None if it has none.
    """

    slot: Slot
    cell: Cell
    verdict: Callable[[], HyperRuntimeError] | None = None
    running: set[RunningCall] = attrs.field(factory=set)
    timer: asyncio.TimerHandle | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call of the holder; it is cancelled when the lease ends.

        Raises:
            HyperRuntimeError: the lease ended during the call; the error says why.
        """
        call = RunningCall()
        self.running.add(call)
        is_ours = False
        try:
            try:
                return await work
            finally:
                self.running.discard(call)
                is_ours = call.end()
        except asyncio.CancelledError:
            if self.verdict is None or not is_ours:
                raise
            raise self.verdict() from None
        except _LOST as error:
            if self.verdict is None:
                raise
            raise self.verdict() from error

    async def end_calls(self) -> None:
        """Cancel the running calls, and wait at most 30 s for their end."""
        running = tuple(self.running)
        for call in running:
            call.cancel()
        if running:
            await asyncio.wait([call.done for call in running], timeout=_END_S)


class LeaseTable:
    """All leases of a pool that have not been released."""

    def __init__(self) -> None:
        """Begin with an empty table."""
        self._grants: dict[str, Grant] = {}

    def __iter__(self) -> Iterator[Grant]:
        """Iterate over a copy of the leases."""
        return iter(tuple(self._grants.values()))

    def add(self, grant: Grant) -> None:
        """Add a lease."""
        self._grants[grant.slot.slot_id] = grant

    def find(self, slot: Slot) -> Grant:
        """Return the lease of a handle, even if its container was lost.

        Raises:
            StaleLeaseError: the lease was released or expired, or does not belong to this pool.
        """
        if not isinstance(slot, Slot):
            raise StaleLeaseError(f"{slot!r} is not a Slot; use what acquire() returned")
        grant = self._grants.get(slot.slot_id)
        if grant is None or grant.slot != slot:
            raise stale(slot, "is not leased, or has a newer lease")
        return grant

    def good(self, slot: Slot) -> Grant:
        """Return the valid lease of a handle.

        Raises:
            StaleLeaseError: as in :meth:`find`.
            HyperRuntimeError: the container ended, or the pool was stopped.
        """
        grant = self.find(slot)
        if grant.verdict is not None:
            raise grant.verdict()
        return grant

    def remove(self, grant: Grant) -> None:
        """Remove a lease and cancel its timer."""
        del self._grants[grant.slot.slot_id]
        if grant.timer is not None:
            grant.timer.cancel()


def stale(slot: Slot, why: str) -> StaleLeaseError:
    """Return the error for a stale slot handle.

    Args:
        slot: the handle.
        why: what happened to the lease; the rest of a sentence that begins with the slot.
    """
    return StaleLeaseError(
        f"slot {slot.slot_id} (lease {slot.generation} for {slot.task_id!r}) {why}; acquire "
        "another one"
    )
