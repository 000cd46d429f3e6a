"""Displays that rich keeps at the lower end of a terminal, while lines scroll above them.

Only the code that draws one imports this module, because rich takes long to import.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.live import Live

_REFRESHES_PER_S = 5


class DisplayConsole(Console):
    """A console on which one thread at a time moves the cursor and writes, and which breaks no
    line.

    rich computes how far to move the cursor and writes later, without a lock. A thread that writes
    in between moves the display: lines are overwritten, and old rows stay. A long line is left to
    the terminal, so that an address or a path can be copied in one piece.
    """

    def __init__(self, *, stderr: bool = True) -> None:
        """Make the console.

        Args:
            stderr: whether it is on standard error, else on standard output.
        """
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True)
        self._writing = threading.RLock()

    def __enter__(self) -> DisplayConsole:
        """Wait until no other thread writes; then collect output."""
        self._writing.acquire()
        super().__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write what was collected."""
        try:
            super().__exit__(exc_type, exc_value, traceback)
        finally:
            self._writing.release()


@contextmanager
def displayed(live: Live, console: DisplayConsole) -> Iterator[None]:
    """Show a display inside the block, and draw it again several times per second.

    Args:
        live: the display, made with ``console`` and without a refresh of its own: that one would
            wait for the console while it holds a lock that the console's writer needs.
        console: where it is drawn.
    """
    ended = threading.Event()

    def draw() -> None:
        while not ended.wait(1 / _REFRESHES_PER_S):
            with console:
                live.refresh()

    drawing = threading.Thread(target=draw, name="hyperrun-display", daemon=True)
    with console:
        live.start(refresh=True)
    try:
        drawing.start()
        yield
    finally:
        ended.set()
        if drawing.ident is not None:
            drawing.join()
        with console:
            live.stop()
