"""Turn SIGINT and SIGTERM into a request to end a run."""

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
    """Call ``stop`` on each SIGINT or SIGTERM, while this lasts; a second SIGINT raises KeyboardInterrupt.

    Outside of the main thread signals are left to whoever has it.

    Args:
        stop: called by a handler, so between any two steps of the main thread, perhaps of another call of itself. It
            may take no lock: the main thread may hold it, and does not go on before this returns.
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
