"""Work on an event loop that another thread can interrupt; its caller continues only after it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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
