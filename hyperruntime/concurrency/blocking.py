"""Blocking work that an event loop awaits: its threads, apart from asyncio's own, and its
cancellation.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from hyperruntime.concurrency.end_event import make_waiter
from hyperruntime.concurrency.exhaustion import too_many_files
from hyperruntime.concurrency.per_process import PerProcess

T = TypeVar("T")

EXECS = "exec"
STARTS = "start"
RESETS = "reset"
STREAMS = "stream"
_THREADS = {EXECS: 1024, STARTS: 16, RESETS: 32, STREAMS: 256}
# between two starts: hundreds of new threads at once keep an event loop from running for a second
_PAUSE_S = 0.0005


class _Seat:
    """One idle thread; giving it a job wakes no other thread."""

    def __init__(self) -> None:
        self._job: Callable[[], None] | None = None
        self._given = threading.Lock()
        self._given.acquire()

    def give(self, job: Callable[[], None]) -> None:
        self._job = job
        self._given.release()

    def take(self) -> Callable[[], None]:
        self._given.acquire()
        job, self._job = self._job, None
        assert job is not None
        return job


class Threads:
    """Daemon threads for one kind of work; they start as work needs them, and stay.

    A job goes to the thread that was idle last. With one queue for all, each job would also wake a
    second thread for nothing, because :class:`queue.SimpleQueue` passes its lock on.
    """

    def __init__(self, name: str, most: int) -> None:
        """Start the thread that starts the others, which takes milliseconds; :meth:`submit` must
        not wait for it.

        Args:
            name: name of the threads.
            most: maximum number of threads; more work waits.
        """
        self._name = name
        self._most = most
        self._jobs: deque[Callable[[], None]] = deque()  # waits only while no thread is idle
        self._idle: list[_Seat] = []
        self._lock = threading.Lock()
        self._unfinished = self._count = 0
        self._wanted = threading.Semaphore(0)
        threading.Thread(target=self._start_threads, name=f"{name}-starter", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run work in a thread; return its future at once. Work that has not started can be
        cancelled.
        """
        future: Future[T] = Future()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - raised where the result is wanted
                    future.set_exception(error)
                else:
                    future.set_result(result)

        with self._lock:
            self._unfinished += 1
            more = self._count < min(self._most, self._unfinished)
            seat = self._idle.pop() if self._idle else None
            if seat is None:
                self._jobs.append(job)
        if seat is not None:
            seat.give(job)
        if more:
            self._wanted.release()
        return future

    def _start_threads(self) -> None:
        while self._wanted.acquire():
            with self._lock:
                more = self._count < min(self._most, self._unfinished)
                self._count += more
            if more:
                self._start_one()
                time.sleep(_PAUSE_S)

    def _start_one(self) -> None:
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except RuntimeError:  # the machine has no more threads: the work waits for the others
            with self._lock:
                alone = self._count == 1
                self._count -= not alone
            if alone:
                self._serve()

    def _serve(self) -> None:
        seat = _Seat()
        while True:
            self._next(seat)()
            with self._lock:
                self._unfinished -= 1

    def _next(self, seat: _Seat) -> Callable[[], None]:
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            self._idle.append(seat)
        return seat.take()


# a forked child has no threads of its parent
_threads: PerProcess[dict[str, Threads]] = PerProcess(dict)


async def blocking(
    kind: str, work: Callable[[], T], *, undo: Callable[[T], object] | None = None
) -> T:
    """Run blocking work in a thread; each kind of work has threads of its own, so that kinds do not
    delay each other.

    Args:
        kind: ``EXECS``, ``STARTS``, ``RESETS`` or ``STREAMS``.
        work: called in the thread; its result is returned.
        undo: called in the thread with the result, if the caller is cancelled while the work runs;
            None does nothing.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the work does not begin, or goes on
            without it.
    """
    begun = threads(kind).submit(work)
    try:
        await _until_done(begun)
    except asyncio.CancelledError:
        if not begun.cancel() and undo is not None:
            begun.add_done_callback(
                lambda _: begun.exception() or threads(kind).submit(lambda: undo(begun.result()))
            )
        raise
    return begun.result()


def threads(kind: str) -> Threads:
    """Return the threads of this process for a kind of work: ``EXECS``, ``STARTS``, ``RESETS`` or
    ``STREAMS``.
    """
    ours = _threads.get()
    known = ours.get(kind)
    return (
        known
        if known is not None
        else ours.setdefault(kind, Threads(f"hyperruntime-{kind}", _THREADS[kind]))
    )


async def run_cancellable(work: Callable[[int], T]) -> T:
    """Run ``work(cancel_fd)`` in a thread; if the caller is cancelled, signal the work and wait
    until it ends.

    ``cancel_fd`` becomes readable when the caller is cancelled. Work that has not started is
    dropped.

    Raises:
        asyncio.CancelledError: the caller was cancelled, once or more; raised after the work has
            ended.
        StorageError: no file descriptor is left.
    """
    signal = _CancelSignal()
    begun = threads(EXECS).submit(lambda: signal.run(work))
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

    Call it before you turn an error into a value. Closing the resources of a cancelled task may
    fail, and that error hides the cancellation.

    Raises:
        asyncio.CancelledError: this task was cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _until_done(begun: Future[T]) -> None:
    """Wait for work in a thread; takes one callback on the event loop, where asyncio's own way
    takes four.
    """
    waiter, wake = make_waiter()
    begun.add_done_callback(wake)
    await waiter


class _CancelSignal:
    """Signals to running work that its caller was cancelled; holds a descriptor only while the work
    runs.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        self._is_set = False
        self._lock = threading.Lock()

    def run(self, work: Callable[[int], T]) -> T:
        try:
            with self._lock:
                self._descriptor = descriptor = os.eventfd(int(self._is_set))
        except OSError as error:
            raise too_many_files(error) or error from None
        try:
            return work(descriptor)
        finally:
            with self._lock:
                self._descriptor = -1
                os.close(descriptor)

    def set(self) -> None:
        with self._lock:
            self._is_set = True
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)
