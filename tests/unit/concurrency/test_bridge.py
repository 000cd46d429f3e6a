"""An event loop in a thread: what its end does to work that has not begun."""

from __future__ import annotations

import asyncio

from hyperruntime.concurrency.bridge import Bridge, cancel_other_tasks
from hyperruntime.errors import ClusterError


def test_a_task_that_has_not_begun_can_close_what_it_was_given() -> None:
    """As the task that asyncio makes for each connection that it accepts."""
    closed: list[int] = []

    async def use(number: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            closed.append(number)

    async def end() -> None:
        kept = [asyncio.ensure_future(use(number)) for number in range(3)]
        await cancel_other_tasks()
        assert all(task.cancelled() for task in kept)

    loop = Bridge("test", ClusterError)
    try:
        loop.run(end(), 60)
    finally:
        loop.close()
    assert sorted(closed) == [0, 1, 2]
