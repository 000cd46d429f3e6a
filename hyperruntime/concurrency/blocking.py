"""Blocking work that an event loop awaits: its threads, apart from asyncio's own, and its cancellation."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from hyperruntime.concurrency.end_event import make_waiter

T = TypeVar("T")

EXECS, STARTS, RESETS = "exec", "start", "reset"
_THREADS = {EXECS: 1024, STARTS: 16, RESETS: 32}

_executors: dict[tuple[int, str], ThreadPoolExecutor] = {}


async def blocking(kind: str, work: Callable[[], T]) -> T:
    """Run blocking work in a thread; each kind of work has threads of its own, so that kinds do not delay each other.

    Args:
        kind: ``STARTS`` or ``RESETS``.
        work: called in the thread; its result is returned.
    """
    return await asyncio.get_running_loop().run_in_executor(threads(kind), work)


def threads(kind: str) -> ThreadPoolExecutor:
    """Return the threads of this process for a kind of work: ``EXECS``, ``STARTS`` or ``RESETS``."""
    key = (os.getpid(), kind)  # a forked child has none of its parent's threads
    known = _executors.get(key)
    if known is None:
        known = _executors.setdefault(
            key, ThreadPoolExecutor(_THREADS[kind], thread_name_prefix=f"hyperruntime-{kind}")
        )
    return known


async def run_cancellable(work: Callable[[int], T]) -> T:
    """Run ``work(cancel_fd)`` in a thread; if the caller is cancelled, signal the work and wait until it ends.

    ``cancel_fd`` becomes readable when the caller is cancelled. Work that has not started is dropped.

    Raises:
        asyncio.CancelledError: the caller was cancelled, once or more; raised after the work has ended.
    """
    signal = _CancelSignal()
    try:
        begun = threads(EXECS).submit(work, signal.descriptor)
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
    waiter, wake = make_waiter()
    begun.add_done_callback(wake)
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
