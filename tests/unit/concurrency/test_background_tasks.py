"""The error of a task that nobody awaits is logged, and asyncio never reports it as not
retrieved.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from structlog.testing import capture_logs

from hyperruntime.concurrency.background_tasks import BackgroundTasks


async def fail() -> None:
    raise ValueError("no luck")


async def hang() -> None:
    await asyncio.Event().wait()


def test_an_error_is_logged_and_no_task_is_kept() -> None:
    unhandled: list[dict[str, Any]] = []

    async def use() -> int:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: unhandled.append(context)
        )
        tasks = BackgroundTasks("a pool")
        tasks.start(fail())
        tasks.start(asyncio.sleep(0))
        await tasks.wait()
        gc.collect()
        await asyncio.sleep(0)
        return len(tasks)

    with capture_logs() as logs:
        assert asyncio.run(use()) == 0
    assert unhandled == []
    assert [(entry["event"], entry["owner"], entry["error"]) for entry in logs] == [
        ("background task failed", "a pool", "no luck")
    ]


def test_cancelled_tasks_end_and_are_not_logged() -> None:
    async def use() -> None:
        tasks = BackgroundTasks("a pool")
        running = tasks.start(hang())
        await asyncio.sleep(0)
        tasks.cancel()
        await tasks.wait()
        assert running.cancelled()

    with capture_logs() as logs:
        asyncio.run(use())
    assert logs == []
