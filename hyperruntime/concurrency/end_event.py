"""An event that happens once, with listeners in threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


def make_waiter() -> tuple[asyncio.Future[None], Callable[..., None]]:
    """Return a future of the running event loop, and the function that sets it; any thread may call
    it, and again.
    """
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def resolve() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def wake(*_: object) -> None:
        try:
            loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            pass  # the loop is closed, so no task waits

    return waiter, wake


class EndEvent:
    """An event that is set once; a later listener is called at once. Safe to use from many
    threads.
    """

    def __init__(self) -> None:
        """Make an event that has not been set."""
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._is_set = False

    @property
    def is_set(self) -> bool:
        """Whether the event was set."""
        return self._is_set

    def set(self) -> None:
        """Call all listeners in this thread; later calls do nothing."""
        with self._lock:
            self._is_set, listeners, self._listeners = True, self._listeners, []
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` once when the event is set, in the thread that sets it; return an
        unsubscribe function.
        """
        with self._lock:
            if not self._is_set:
                self._listeners.append(listener)
                return lambda: self._forget(listener)
        listener()
        return lambda: None

    async def wait(self) -> None:
        """Wait until the event is set."""
        waiter, wake = make_waiter()
        forget = self.listen(wake)
        try:
            await waiter
        finally:
            forget()

    def _forget(self, listener: Callable[[], None]) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
