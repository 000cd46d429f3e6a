"""Know which signal ended a run, whoever handled it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hyperruntime.cli.command import State

T = TypeVar("T")

_EXIT_BY_SIGNAL = 128
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def last_signal(state: State) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the number of the last ending signal that came meanwhile, or 0.

    Where an error ends this after such a signal, the state knows of it.

    The loop has its own handlers. Python also writes the number of every signal to the wakeup descriptor, so
    nothing of theirs is touched.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    seen: list[int] = []

    def last() -> int:
        return next((number for number in reversed(seen) if number in _ENDING), 0)

    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    try:
        yield last
    finally:
        signal.set_wakeup_fd(before)
        os.close(writable)
        seen.extend(os.read(readable, 4096))
        os.close(readable)
        if last():
            state.signal, state.ending = last(), True


def run_until_signal(work: Coroutine[Any, Any, T], state: State) -> T:
    """Run a coroutine in a loop of its own, which an ending signal cancels, so that it lets go of what it holds.

    A second signal ends the process at once.

    Raises:
        CancelledError: a signal came; the state knows its number.
    """

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "inside a coroutine"

        def end(number: int) -> None:
            if task.cancelling():  # asked before, and something does not end: the containers go with this process
                os._exit(_EXIT_BY_SIGNAL + number)
            state.signal = number
            task.cancel()

        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, end, number)
        return await work

    return asyncio.run(main())
