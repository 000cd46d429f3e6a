"""Cancellation of blocking work that an event loop awaits, and of tasks whose errors hide it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

MAX_AT_ONCE = 1024
_pools: dict[int, ThreadPoolExecutor] = {}  # by process: a forked child has none of its parent's threads


def awaited_threads() -> ThreadPoolExecutor:
    """Return the threads of all awaited commands of this process; at most 1024 commands run at once."""
    if (known := _pools.get(os.getpid())) is None:
        made = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="hyperruntime-exec")
        known = _pools.setdefault(os.getpid(), made)
    return known


async def run_cancellable(work: Callable[[int], T]) -> T:
    """Run ``work(cancel_fd)`` in a thread; if the caller is cancelled, signal the work and wait until it ends.

    ``cancel_fd`` becomes readable when the caller is cancelled. Work that has not started is dropped.

    Raises:
        asyncio.CancelledError: the caller was cancelled, once or more; raised after the work has ended.
    """
    signal = _CancelSignal()
    try:
        begun = awaited_threads().submit(work, signal.descriptor)
    except BaseException:
        signal.close()
        raise
    begun.add_done_callback(lambda _: signal.close())
    try:
        await _until_done(begun)
    except asyncio.CancelledError:
        if not begun.cancel():
            signal.set()
        while not begun.done():
            try:
                await _until_done(begun)
            except asyncio.CancelledError:
                continue
        raise
    return begun.result()


def check_cancelled() -> None:
    """Raise CancelledError if the running task was cancelled.

    Call it before you turn an error into a value. Closing the resources of a cancelled task may fail, and that error
    hides the cancellation.

    Raises:
        asyncio.CancelledError: this task was cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _until_done(begun: Future[T]) -> None:
    """Wait for work in a thread; takes one callback on the event loop, where asyncio's own way takes four."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def settle() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def tell(_: Future[T]) -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            pass  # the loop is closed, so no task waits

    begun.add_done_callback(tell)
    await waiter


class _CancelSignal:
    """Signals to running work that its caller was cancelled; closed when the work is done."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0)
        self._lock = threading.Lock()

    def set(self) -> None:
        with self._lock:
            if self.descriptor >= 0:
                os.eventfd_write(self.descriptor, 1)

    def close(self) -> None:
        with self._lock:
            if self.descriptor >= 0:
                os.close(self.descriptor)
                self.descriptor = -1
