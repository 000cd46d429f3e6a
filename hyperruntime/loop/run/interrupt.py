"""Turn SIGINT and SIGTERM into a request to stop a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGINT and SIGTERM inside the ``with`` statement.

    The caller's handler is called too. The KeyboardInterrupt that it raises for the first signal is dropped, because
    the run stops by itself. Later signals are the caller's: Python's own handler of SIGINT raises KeyboardInterrupt,
    and the command line ends the process. A signal without a handler has no other effect than ``stop``.

    Outside the main thread, signal handlers are not changed.

    Args:
        stop: called by a signal handler, at any point of the main thread, possibly inside another call of ``stop``. It
            must not take a lock: the main thread may hold the lock and does not continue before ``stop`` returns.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        is_first, asked = not asked, True
        stop()
        if callable(before[number]):
            try:
                before[number](number, frame)
            except KeyboardInterrupt:
                if not is_first:
                    raise

    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[number])
