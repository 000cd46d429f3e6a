"""Who waits for a slot, in the order they came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs

from hyperruntime.errors import HyperRuntimeError
from hyperruntime.pool.values.slot import Slot


@attrs.frozen(eq=False)
class Waiter:
    """One acquire that waits.

    Attributes:
        task_id: for whom.
        future: gets the slot, or the error.
    """

    task_id: str
    future: asyncio.Future[Slot]


class WaitQueue:
    """First come, first served; whoever gives up leaves no trace."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._waiters: dict[Waiter, None] = {}

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiters)

    def __bool__(self) -> bool:
        """Tell whether anybody waits. Who was cancelled does not, though it is in the line until its next turn."""
        while self._waiters and self.first().future.done():
            del self._waiters[self.first()]
        return bool(self._waiters)

    def first(self) -> Waiter:
        """Return who came first."""
        return next(iter(self._waiters))

    def serve(self, slot: Slot) -> None:
        """Give the first a slot; there is one, as the line's truth has just said."""
        waiter = self.first()
        del self._waiters[waiter]
        waiter.future.set_result(slot)

    def fail_all(self, make_error: Callable[[], HyperRuntimeError]) -> None:
        """Tell everybody who waits an error."""
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
        """Return a slot once it is this waiter's turn.

        Args:
            task_id: for whom.
            timeout_s: how long to wait.
            too_late: makes the error of the deadline.
            joined: called once the waiter is in the line.
            give_back: takes back a slot that came when the waiter had given up.
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
