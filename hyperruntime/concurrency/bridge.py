"""The bridge between threads and event loops: a loop in a thread of its own, and faces that wait.

A method that waits for a coroutine method of another class is made from it by :func:`waiting`, so
that each verb is written once.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_MOST_TURNS = 100  # of the event loop, if new tasks keep coming


class _Call(Future[T]):
    """The future of work on an event loop; cancelling it cancels the work, whose end it awaits."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self._loop = loop
        loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            super().cancel()
            self.set_running_or_notify_cancel()  # for who waits for several futures
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())

    def cancel(self) -> bool:
        if self.done():
            return False
        try:
            self._loop.call_soon_threadsafe(self._cancel)  # after `_begin`
        except RuntimeError:  # the loop is closed
            self.abandon()
        return True

    def abandon(self) -> None:
        """Cancel a call whose loop runs no more."""
        if not self.done() and super().cancel():
            self.set_running_or_notify_cancel()

    def _cancel(self) -> None:
        self._task.cancel()


class Bridge:
    """An event loop in a daemon thread; a forked child has neither."""

    def __init__(self, name: str, closed_error: Callable[[str], Exception]) -> None:
        """Start it.

        Args:
            name: name of the thread.
            closed_error: makes the error of work that cannot be scheduled, from the end of a
                sentence that says why.
        """
        self._closed_error = closed_error
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._calls: weakref.WeakSet[_Call[Any]] = weakref.WeakSet()
        self._lock = threading.Lock()  # of the calls, and of the end of the loop
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether this process started it."""
        return os.getpid() == self._pid

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedule work; any thread may wait for the future or cancel it.

        A cancelled future is done when the work has ended, so that nothing of it goes on unseen.

        Raises:
            Exception: of ``closed_error``: the loop is stopped, or belongs to the parent of this
                process.
        """
        if not inspect.iscoroutine(work):
            raise TypeError("work must be a coroutine")
        if not self.is_here:
            work.close()
            raise self._closed_error("belongs to the parent of this process; open another one")
        with self._lock:
            if self._loop.is_closed():
                work.close()
                raise self._closed_error("was stopped")
            call = _Call(self._loop, work)
            self._calls.add(call)
        return call

    def run(
        self,
        work: Coroutine[Any, Any, T],
        timeout_s: float | None = None,
        *,
        undo: Callable[[T], Coroutine[Any, Any, object]] | None = None,
    ) -> T:
        """Run work to its end; an interrupted or late wait cancels it.

        Args:
            work: the work.
            timeout_s: seconds to wait for it; None means no limit.
            undo: gives back a result that came too late for an interrupted wait.

        Raises:
            Exception: as for :meth:`submit`.
            TimeoutError: it took longer than ``timeout_s``.
        """
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            if undo is not None:
                future.add_done_callback(partial(self._undo, undo))
            raise

    def _undo(self, undo: Callable[[T], Coroutine[Any, Any, object]], done: Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.submit(undo(done.result()))

    def close(self) -> None:
        """Stop the loop and its thread, and cancel what is left; may be called again."""
        if self.is_here and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            with self._lock:
                self._loop.close()
                left = tuple(self._calls)
            for call in left:
                call.abandon()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def waiting(
    coroutine: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    *,
    undo: Callable[[Any, T], Coroutine[Any, Any, object]] | None = None,
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that waits for the end of a coroutine method of another class.

    The class that has it holds an object of the other class in ``_source``, and a bridge in
    ``_bridge``.

    Args:
        coroutine: the coroutine method.
        undo: another one, for the result of a call whose caller was interrupted; see
            :meth:`Bridge.run`.
    """

    @wraps(coroutine)
    def method(self: Any, /, *args: P.args, **options: P.kwargs) -> T:  # noqa: ANN401 - of any class
        source = self._source
        work = coroutine(source, *args, **options)
        bridge: Bridge = self._bridge
        return bridge.run(work, undo=undo and partial(undo, source))

    return method


async def cancel_other_tasks() -> None:
    """Cancel all other tasks of the running event loop and wait for their ends, as ``asyncio.run``
    does at its end.

    Tasks that have not begun are started first, because only their own code closes what they were
    given, such as a connection that asyncio has just accepted.
    """
    for _ in range(_MOST_TURNS):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if not any(map(_is_new, tasks)):
            break
        await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is_new(task: asyncio.Task[Any]) -> bool:
    work = task.get_coro()
    return inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED
