"""The bridge between threads and event loops: a loop in a thread of its own, and faces that wait.

A class whose methods wait for the coroutines of another one is made from that one by
:func:`waits_for`, so that each verb is written once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")
C = TypeVar("C")
_MOST_TURNS = 100  # of the event loop, if new tasks keep coming


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
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether this process started it."""
        return os.getpid() == self._pid

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedule work; any thread may wait for the future or cancel it.

        Raises:
            Exception: of ``closed_error``: the loop is stopped, or belongs to the parent of this
                process.
        """
        if not self.is_here or self._loop.is_closed():
            work.close()
            why = (
                "was stopped"
                if self.is_here
                else "belongs to the parent of this process; open another one"
            )
            raise self._closed_error(why)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run work to its end; an interrupted or late wait cancels it.

        Args:
            work: the work.
            timeout_s: seconds to wait for it; None means no limit.

        Raises:
            Exception: as for :meth:`submit`.
            TimeoutError: it took longer than ``timeout_s``.
        """
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and its thread; may be called again."""
        if self.is_here and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def waits_for(source: type, attribute: str) -> Callable[[type[C]], type[C]]:
    """Return a decorator that gives a class a method for each coroutine method of another class.

    The method calls the coroutine method of the object in ``attribute`` and waits for its end on
    the bridge in ``_bridge``. Methods that the class has itself stay.

    Args:
        source: the class with the coroutine methods.
        attribute: name of the attribute that holds an object of that class.
    """

    def method_for(name: str, coroutine: Callable[..., Coroutine[Any, Any, Any]]) -> object:
        @functools.wraps(coroutine)
        def method(self: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - of the source
            return self._bridge.run(getattr(getattr(self, attribute), name)(*args, **options))

        return method

    def fill(kind: type[C]) -> type[C]:
        for name, coroutine in inspect.getmembers(source, inspect.iscoroutinefunction):
            if not name.startswith("_") and name not in vars(kind):
                setattr(kind, name, method_for(name, coroutine))
        return kind

    return fill


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


class Interruptible(Generic[T]):
    """One piece of work: runs on an event loop, can be interrupted from any thread."""

    def __init__(self) -> None:
        """Prepare; nothing runs yet."""
        self._interrupted = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[T]] | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run the work and return its result; None if it was interrupted."""
        task = asyncio.ensure_future(work)
        self._running = asyncio.get_running_loop(), task
        if self._interrupted:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if self._interrupted:
                return None
            raise

    def interrupt(self) -> None:
        """Cancel the work, also if it has not started yet."""
        self._interrupted = True
        if self._running is not None:
            loop, task = self._running
            loop.call_soon_threadsafe(task.cancel)
