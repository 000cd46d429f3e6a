"""The live display of a run on a terminal, with rich."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hyperruntime.cli.display import DisplayConsole, displayed
from hyperruntime.cli.loop.progress import FINISHED, Tracker
from hyperruntime.loop.run_files.record import ENSEMBLE
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.units import format_duration

_BAR_WIDTH = 30


class LiveDisplay:
    """Shows one line per running generation and one for the whole run; finished generations stay
    above as text.
    """

    def __init__(self, tracker: Tracker) -> None:
        """Make the display of a tracker's state on standard error."""
        self._tracker = tracker
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._console = DisplayConsole()
        self._live = Live(
            console=self._console,
            get_renderable=self.render,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
        )

    def shown(self) -> AbstractContextManager[None]:
        """Draw the display inside the block."""
        return displayed(self._live, self._console)

    def on_event(self, event: StepEvent) -> None:
        """Update the display; the end of a generation, and a failed ensemble, are printed as a
        line.
        """
        with self._lock:
            line = self._tracker.take(event)
        if line and event.step in (FINISHED, ENSEMBLE):
            self._console.print(Text(line, style="yellow" if event.state == "failed" else ""))

    def render(self) -> RenderableType:
        """Return the current content."""
        with self._lock:
            running = [
                (name, entry.step, entry.started) for name, entry in self._tracker.running.items()
            ]
            done = self._tracker.done
            total = self._tracker.total
            best = self._tracker.best_text()
        now = time.monotonic()
        rows = Table.grid(padding=(0, 2))
        for name, step, started in running:
            rows.add_row(
                Text(f"generation {name}", style="bold"), step, Text(format_duration(now - started))
            )
        whole = Table.grid(padding=(0, 2))
        whole.add_row(
            ProgressBar(total=max(total, 1), completed=done, width=_BAR_WIDTH),
            f"{done}/{total} generations",
            Text(best, style="green"),
            format_duration(now - self._started),
        )
        return Group(rows, whole)
