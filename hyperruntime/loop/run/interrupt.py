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
    """Call ``stop`` on SIGINT and SIGTERM inside the ``with`` statement; a SIGINT after that raises KeyboardInterrupt.

    Outside the main thread, signal handlers are not changed.

    Args:
        stop: called by a signal handler, at any point of the main thread, possibly inside another call of ``stop``. It
            must not take a lock: the main thread may hold the lock and does not continue before ``stop`` returns.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True
        stop()

    before: dict[signal.Signals, Any] = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
