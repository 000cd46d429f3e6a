"""Show the progress of a run on standard error: live on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import attrs

from hyperruntime.cli.messages import note
from hyperruntime.units import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR_WIDTH = 30
Event = TypeVar("Event")
Event_contra = TypeVar("Event_contra", contravariant=True)


@attrs.frozen
class Line:
    """A line about an event.

    Attributes:
        text: the line.
        is_bad: whether it is about a failure.
        is_minor: whether a live display leaves it out, because it shows the same.
    """

    text: str
    is_bad: bool = False
    is_minor: bool = False


@attrs.define
class Running:
    """An item that is being made.

    Attributes:
        step: the current step.
        started: when it began, in seconds of ``time.monotonic``.
    """

    step: str
    started: float = attrs.field(factory=time.monotonic)


class Tracker(Protocol[Event_contra]):
    """The progress of a run, computed from its events.

    Attributes:
        unit: what the items are called, in the plural.
        total: number of items of the whole run; 0 as long as it is unknown.
        done: number of finished items, those before a resume included.
        running: items that a live display lists one by one, by name.
    """

    unit: str

    @property
    def total(self) -> int: ...  # noqa: D102 - an attribute

    @property
    def done(self) -> int: ...  # noqa: D102 - an attribute

    @property
    def running(self) -> Mapping[str, Running]: ...  # noqa: D102 - an attribute

    def take(self, event: Event_contra) -> Line | None:
        """Process an event; return a line about it, or None if it needs none."""
        ...

    def summary(self) -> str:
        """Return a few words about the run so far, or ""."""
        ...


@contextmanager
def shown_progress(tracker: Tracker[Event]) -> Iterator[Callable[[Event], None]]:
    """Show the progress of a run inside the block; yield the function that takes its events."""
    if not sys.stderr.isatty():
        yield plain_progress(tracker)
        return
    display = LiveDisplay(tracker)
    with display.shown():
        yield display.on_event


def plain_progress(tracker: Tracker[Event]) -> Callable[[Event], None]:
    """Return a function that takes events, and prints lines with the seconds since the start."""
    started = time.monotonic()

    def on_event(event: Event) -> None:
        if line := tracker.take(event):
            note(f"{time.monotonic() - started:8.1f}s  {line.text}")

    return on_event


class LiveDisplay(Generic[Event]):
    """Shows one line per item that is being made and one for the whole run; lines about failures
    and finished items stay above as text.

    rich is imported only here and late, because that takes long.
    """

    def __init__(self, tracker: Tracker[Event]) -> None:
        """Make the display of a tracker's state on standard error."""
        from rich.live import Live

        from hyperruntime.cli.display import DisplayConsole

        self._tracker = tracker
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._begun: tuple[float, int] | None = None
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
        from hyperruntime.cli.display import displayed

        return displayed(self._live, self._console)

    def on_event(self, event: Event) -> None:
        """Update the display, and print the event's line, unless it is minor."""
        with self._lock:
            line = self._tracker.take(event)
        if line and not line.is_minor:
            self._console.print(
                line.text, style="yellow" if line.is_bad else "", markup=False, emoji=False
            )

    def render(self) -> RenderableType:
        """Return the current content; it is empty as long as the number of items is unknown."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        rows = Table.grid(padding=(0, 2))
        whole = Table.grid(padding=(0, 2))
        with self._lock:
            tracker = self._tracker
            for name, entry in tracker.running.items():
                took = format_duration(now - entry.started)
                rows.add_row(Text(name, style="bold"), entry.step, Text(took))
            if tracker.total:
                whole.add_row(
                    ProgressBar(total=tracker.total, completed=tracker.done, width=_BAR_WIDTH),
                    f"{tracker.done}/{tracker.total} {tracker.unit}",
                    Text(tracker.summary(), style="green"),
                    format_duration(now - self._started),
                    self._left(now),
                )
        return Group(rows, whole)

    def _left(self, now: float) -> str:
        """Return how long the rest takes if it goes on as until now, or ""."""
        done = self._tracker.done
        if self._begun is None:
            self._begun = now, done
        began, before = self._begun
        if not before < done < self._tracker.total:
            return ""
        left_s = (now - began) / (done - before) * (self._tracker.total - done)
        return f"{format_duration(left_s)} left"
