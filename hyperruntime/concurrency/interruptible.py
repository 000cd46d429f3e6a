"""Work on an event loop that another thread may interrupt, and that has ended when its caller goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Interruptible(Generic[T]):
    """One call; made in any thread, run on a loop, interrupted from any thread."""

    def __init__(self) -> None:
        """Begin with nothing running."""
        self._interrupted = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[T]] | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what the work returns; None where it was interrupted and has ended."""
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
        """End the work, or keep it from beginning."""
        self._interrupted = True
        if self._running is not None:
            loop, task = self._running
            loop.call_soon_threadsafe(task.cancel)
