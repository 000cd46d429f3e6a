"""The queue of acquires that wait for a slot, in FIFO order, and their errors if there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from hyperruntime.errors import HyperRuntimeError, PoolStartError, SlotTimeoutError
from hyperruntime.pool_values.results import PoolStatus

T = TypeVar("T")


class WaitQueue(Generic[T]):
    """A FIFO queue of acquires that wait for a slot, or for a node; a cancelled or timed-out
    acquire leaves it.
    """

    def __init__(self) -> None:
        """Begin with an empty queue."""
        self._waiters: dict[asyncio.Future[T], str] = {}  # each waiter's task

    def __len__(self) -> int:
        """Return the number of waiters."""
        return len(self._waiters)

    def __bool__(self) -> bool:
        """Return whether an acquire waits; first removes cancelled waiters from the front of the
        queue.
        """
        while self._waiters and (first := next(iter(self._waiters))).done():
            del self._waiters[first]
        return bool(self._waiters)

    def first_task(self) -> str:
        """Return the task of the first waiter."""
        return next(iter(self._waiters.values()))

    def serve(self, slot: T) -> None:
        """Give a slot to the first waiter; the caller has just checked that the queue is true."""
        waiter = next(iter(self._waiters))
        del self._waiters[waiter]
        waiter.set_result(slot)

    def fail_all(self, make_error: Callable[[], HyperRuntimeError]) -> None:
        """Remove all waiters; each receives a new error."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(make_error())

    async def wait(
        self,
        task_id: str,
        timeout_s: float,
        *,
        too_late: Callable[[], HyperRuntimeError],
        joined: Callable[[], None],
        give_back: Callable[[T], None],
    ) -> T:
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
        waiter: asyncio.Future[T] = loop.create_future()

        def expire() -> None:
            if not waiter.done():
                self._waiters.pop(waiter, None)
                waiter.set_exception(too_late())

        timer = loop.call_later(timeout_s, expire)
        self._waiters[waiter] = task_id
        try:
            joined()
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                give_back(waiter.result())
            raise
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)


def too_late(status: PoolStatus, timeout_s: float, cause: Exception | None) -> SlotTimeoutError:
    """Return the error of an acquire that reached its deadline.

    Args:
        status: the pool's status at the deadline.
        timeout_s: how long the acquire waited.
        cause: why containers do not start; None if they do.
    """
    why = f"; containers do not start: {cause}" if cause is not None else ""
    error = SlotTimeoutError(
        f"no slot of pool {status.name!r} became free within {timeout_s:g} s ({status.leased} "
        f"leased, {status.waiting} other acquires waiting, at most {status.max_containers} "
        f"containers in use){why}; release slots, or raise timeout_s or max_containers"
    )
    error.__cause__ = cause
    return error


def cannot_start(pool: str, cause: Exception | None) -> PoolStartError:
    """Return the error of a pool whose containers do not start.

    Args:
        pool: the profile's name.
        cause: the last failure to start.
    """
    error = PoolStartError(f"no container of pool {pool!r} can be started: {cause}")
    error.__cause__ = cause
    return error
