"""Blocking work for an event loop: its threads start elsewhere, and a cancelled caller leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hyperruntime.concurrency.blocking import (
    EXECS,
    STARTS,
    Threads,
    blocking,
    run_cancellable,
    threads,
)


@pytest.fixture
def starters(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return the list of the threads that have started another thread since the fixture."""
    found: list[threading.Thread] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        found.append(threading.current_thread())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return found


def test_the_event_loop_starts_no_thread_for_its_work(starters: list[threading.Thread]) -> None:
    release = threading.Event()
    before = len(os.listdir("/proc/self/fd"))

    async def main() -> list[bool]:
        await run_cancellable(lambda _: None)
        starters.clear()
        works = [
            asyncio.ensure_future(run_cancellable(lambda _: release.wait(60))) for _ in range(100)
        ]
        await asyncio.sleep(0)
        while len(starters) < 2:
            await asyncio.sleep(0.001)
        release.set()
        return await asyncio.gather(*works)

    assert asyncio.run(main()) == [True] * 100
    assert threading.main_thread() not in starters
    assert len(os.listdir("/proc/self/fd")) <= before


def test_work_above_the_maximum_of_threads_waits_its_turn_and_all_of_it_is_done() -> None:
    few, running, most = Threads("few", 3), 0, 0
    lock = threading.Lock()

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return number

    with ThreadPoolExecutor(8) as callers:
        futures = list(callers.map(lambda n: few.submit(lambda: work(n)), range(500)))
    assert [future.result(60) for future in futures] == list(range(500))
    assert most <= 3


def test_each_piece_of_work_has_a_thread_while_others_block() -> None:
    """Work that waits for later work: with one thread too few, nothing would ever end."""
    some, meeting = Threads("some", 16), threading.Barrier(16)
    for _ in range(20):
        futures = [some.submit(lambda: meeting.wait(60)) for _ in range(16)]
        assert sorted(future.result(60) for future in futures) == list(range(16))


def test_a_job_goes_to_the_thread_that_was_idle_last() -> None:
    """With one queue for all threads, each job also wakes a thread that finds nothing to do."""
    some, together = Threads("some", 4), threading.Barrier(4)
    for work in [some.submit(lambda: together.wait(60)) for _ in range(4)]:
        work.result(60)
    while len(some._idle) < 4:
        time.sleep(0.001)

    def one() -> int:
        ran_in = some.submit(threading.get_ident).result(60)
        while len(some._idle) < 4:
            time.sleep(0.001)
        return ran_in

    assert len({one() for _ in range(20)}) == 1


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_the_result_for_a_cancelled_caller_is_undone_in_a_thread(gate: threading.Event) -> None:
    undone: list[tuple[str, threading.Thread]] = []
    done, begun = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        gate.wait(60)
        return "made"

    def undo(made: str) -> None:
        undone.append((made, threading.current_thread()))
        done.set()

    async def main() -> None:
        task = asyncio.ensure_future(blocking(STARTS, work, undo=undo))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()

    asyncio.run(main())
    assert done.wait(60)
    assert [made for made, _ in undone] == ["made"]
    assert undone[0][1] is not threading.main_thread()


def test_cancelled_work_that_has_not_begun_never_runs(gate: threading.Event) -> None:
    one = Threads("one", 1)
    busy = one.submit(lambda: gate.wait(60))
    ran: list[int] = []
    waiting = one.submit(lambda: ran.append(1))
    assert waiting.cancel()
    gate.set()
    assert busy.result(60)
    assert one.submit(lambda: 7).result(60) == 7
    assert not ran


def test_a_cancellation_before_the_work_begins_reaches_it_through_its_descriptor() -> None:
    """The caller is cancelled between the start of its thread and the opening of the descriptor."""

    async def main() -> None:
        for _ in range(50):
            task = asyncio.ensure_future(run_cancellable(os.eventfd_read))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(main(), 60))
    assert threads(EXECS).submit(lambda: 1).result(60) == 1
