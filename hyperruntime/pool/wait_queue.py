"""The queue of acquires that wait for a slot, in FIFO order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs

from hyperruntime.errors import HyperRuntimeError
from hyperruntime.pool.values.slot import Slot


@attrs.frozen(eq=False)
class Waiter:
    """One waiting acquire.

    Attributes:
        task_id: the task of the lease.
        future: receives the slot or the error.
    """

    task_id: str
    future: asyncio.Future[Slot]


class WaitQueue:
    """A FIFO queue of waiting acquires; a cancelled or timed-out acquire leaves it."""

    def __init__(self) -> None:
        """Begin with an empty queue."""
        self._waiters: dict[Waiter, None] = {}

    def __len__(self) -> int:
        """Return the number of waiters."""
        return len(self._waiters)

    def __bool__(self) -> bool:
        """Return whether an acquire waits; first removes cancelled waiters from the front of the queue."""
        while self._waiters and self.first().future.done():
            del self._waiters[self.first()]
        return bool(self._waiters)

    def first(self) -> Waiter:
        """Return the first waiter."""
        return next(iter(self._waiters))

    def serve(self, slot: Slot) -> None:
        """Give a slot to the first waiter; the caller has just checked that the queue is true."""
        waiter = self.first()
        del self._waiters[waiter]
        waiter.future.set_result(slot)

    def fail_all(self, make_error: Callable[[], HyperRuntimeError]) -> None:
        """Remove all waiters; each receives a new error."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(make_error())

    async def wait(
        self,
        task_id: str,
        timeout_s: float,
        *,
        too_late: Callable[[], HyperRuntimeError],
        joined: Callable[[], None],
        give_back: Callable[[Slot], None],
    ) -> Slot:
        """Wait in the queue and return a slot.

        Args:
            task_id: the task of the lease.
            timeout_s: how long to wait.
            too_late: makes the error that is raised at the deadline.
            joined: called when the waiter is in the queue.
            give_back: takes back a slot that arrived while the waiter was cancelled.

        Raises:
            HyperRuntimeError: the error of ``too_late``, or of :meth:`fail_all`.
        """
        loop = asyncio.get_running_loop()
        waiter = Waiter(task_id, loop.create_future())

        def expire() -> None:
            if not waiter.future.done():
                self._waiters.pop(waiter, None)
                waiter.future.set_exception(too_late())

        timer = loop.call_later(timeout_s, expire)
        self._waiters[waiter] = None
        try:
            joined()
            return await waiter.future
        except asyncio.CancelledError:
            future = waiter.future
            if future.done() and not future.cancelled() and future.exception() is None:
                give_back(future.result())
            raise
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)
