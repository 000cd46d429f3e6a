"""Know which signal ended a run, whoever handled it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def last_signal() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the number of the last ending signal that came meanwhile, or 0.

    The loop has its own handlers. Python also writes the number of every signal to the wakeup descriptor, so
    nothing of theirs is touched.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    seen: list[int] = []
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    try:
        yield lambda: next((number for number in reversed(seen) if number in _ENDING), 0)
    finally:
        signal.set_wakeup_fd(before)
        os.close(writable)
        seen.extend(os.read(readable, 4096))
        os.close(readable)
