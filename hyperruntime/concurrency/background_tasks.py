"""Coroutines that run beside their caller on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from hyperruntime.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")


class BackgroundTasks:
    """Tasks that are kept until they end; an error is logged, because perhaps nobody awaits the
    task.
    """

    def __init__(self, owner: str) -> None:
        """Begin without tasks.

        Args:
            owner: the thing whose tasks they are, for the log.
        """
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return the number of tasks that run."""
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        """Iterate over a copy of the tasks that run."""
        return iter(tuple(self._tasks))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine; return its task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel all tasks, without waiting."""
        for task in self:
            task.cancel()

    async def wait(self) -> None:
        """Wait until no task runs; raises none of their errors."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning(
                "background task failed",
                owner=self._owner,
                error=str(error) or type(error).__name__,
            )
