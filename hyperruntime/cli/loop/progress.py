"""Show a run while it runs: a live table on a terminal, plain lines elsewhere; on standard error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol

import attrs

from hyperruntime.cli.messages import note
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.units import format_duration

SETTLED = "generation"
_LONG_STEPS = ("meta agent", "evaluate")


@attrs.define
class Running:
    """A generation that runs now.

    Attributes:
        step: what it does.
        started: when it began, by the monotonic clock.
    """

    step: str
    started: float


class Tracker:
    """What is known of a run from its events.

    Attributes:
        total: how many generations there will be, the first included.
        done: how many are finished.
        best: score and id of the best so far, or None.
        running: by id.
    """

    def __init__(self, total: int, finished: Iterable[GenerationRecord] = ()) -> None:
        """Begin with what a resumed run has already."""
        self.total, self.done = total, 0
        self.best: tuple[float, str] | None = None
        self.running: dict[str, Running] = {}
        self._reasons: dict[str, str] = {}
        for record in finished:
            self._count(str(record.genid), record.score)

    def take(self, event: StepEvent) -> str | None:
        """Take an event; return the line that tells it, or None for one that is not worth a line."""
        if event.step == SETTLED:
            return self._settle(event)
        if event.state == "failed" and event.detail:
            self._reasons[event.generation] = event.detail
        if event.state != "start":
            return None
        entry = self.running.setdefault(event.generation, Running(event.step, time.monotonic()))
        entry.step = event.step
        return f"generation {event.generation}: {event.step}" if event.step in _LONG_STEPS else None

    def best_text(self) -> str:
        """Return the best so far: ``best 0.9871 (generation 8)``, or "" before there is one."""
        return f"best {self.best[0]:.4f} (generation {self.best[1]})" if self.best else ""

    def _settle(self, event: StepEvent) -> str:
        self.running.pop(event.generation, None)
        self._count(event.generation, event.score)
        reason = " ".join(self._reasons.pop(event.generation, "").split())[:160]
        parts = [f"generation {event.generation}:", "no score" if event.score is None else f"score {event.score:.4f}"]
        if event.state == "failed":
            parts.append(f"failed ({event.detail}{': ' + reason if reason else ''})")
        parts += [f"in {format_duration(event.duration_s)};", self.best_text() or "no score yet"]
        return " ".join(parts)

    def _count(self, generation: str, score: float | None) -> None:
        self.done += 1
        if score is not None and (self.best is None or score > self.best[0]):
            self.best = (score, generation)


class Display(Protocol):
    """Something that shows events while its ``with`` block runs."""

    def on_event(self, event: StepEvent) -> None:
        """Show an event; called from any thread."""
        ...

    def __enter__(self) -> Display:
        """Begin."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        ...


class PlainDisplay:
    """One line for what matters, with the time since the start."""

    def __init__(self, tracker: Tracker) -> None:
        """Show what a tracker makes of the events."""
        self._tracker, self._started, self._lock = tracker, time.monotonic(), threading.Lock()

    def on_event(self, event: StepEvent) -> None:
        """Print the event's line, if it has one."""
        with self._lock:
            if line := self._tracker.take(event):
                note(f"{time.monotonic() - self._started:8.1f}s  {line}")

    def __enter__(self) -> PlainDisplay:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; nothing is left to do."""
