"""An event loop in a thread: cancelled work, interrupted waits, and the end of the loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

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


def test_a_cancelled_future_is_done_when_its_work_has_ended() -> None:
    begun = threading.Event()
    ended: list[bool] = []

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.05)
            ended.append(True)

    loop = Bridge("test", ClusterError)
    try:
        future = loop.submit(work())
        assert begun.wait(60)
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result(60)
        assert ended == [True]
        assert not future.cancel()
    finally:
        loop.close()


def test_a_result_that_nobody_waits_for_any_more_is_given_back() -> None:
    given_back: list[str] = []
    may_end = asyncio.Event()

    async def take() -> str:
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            pass  # it was taken at the same moment
        return "a slot"

    async def give_back(taken: str) -> None:
        given_back.append(taken)

    async def nothing() -> None:
        await asyncio.sleep(0.05)

    loop = Bridge("test", ClusterError)
    try:
        with pytest.raises(TimeoutError):
            loop.run(take(), 0.05, undo=give_back)
        loop.run(nothing(), 60)
    finally:
        loop.close()
    assert given_back == ["a slot"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_end_of_the_loop_leaves_nobody_waiting(when: str) -> None:
    loop = Bridge("test", ClusterError)
    future = loop.submit(asyncio.sleep(1000))
    loop.run(asyncio.sleep(0))
    if when == "before":
        future.cancel()
    loop.close()
    if when == "after":
        future.cancel()
    with pytest.raises(CancelledError):
        future.result(60)
