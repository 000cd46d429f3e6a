"""Show the progress of a run on standard error: the tracker, and plain lines."""

from __future__ import annotations

import time
from collections.abc import Iterable

import attrs

from hyperruntime.cli.messages import note
from hyperruntime.loop.run_files.record import ENSEMBLE, TASKS, GenerationRecord
from hyperruntime.loop.workbench.events import OnEvent, StepEvent
from hyperruntime.units import format_duration

FINISHED = "generation"
_LONG_STEPS = ("meta agent", "evaluate")


@attrs.define
class Running:
    """A running generation.

    Attributes:
        step: the current step.
        started: start of the generation, in seconds of ``time.monotonic``.
    """

    step: str
    started: float


class Tracker:
    """The progress of a run, computed from its events.

    Attributes:
        total: number of generations of the run, the first included.
        done: number of finished generations.
        best: score and id of the best generation so far, or None.
        running: the running generations, by id.
    """

    def __init__(self, total: int, finished: Iterable[GenerationRecord] = ()) -> None:
        """Start with the finished generations of a resumed run."""
        self.total = total
        self.done = 0
        self.best: tuple[float, str] | None = None
        self.running: dict[str, Running] = {}
        self._reasons: dict[str, str] = {}
        self._unanswered: dict[str, str] = {}
        for record in finished:
            self._count(str(record.genid), record.score)

    def take(self, event: StepEvent) -> str | None:
        """Process an event; return a line about it, or None if it needs none."""
        if event.step == FINISHED:
            return self._finish(event)
        if event.step == ENSEMBLE:
            return (
                f"generation {event.generation}: its ensemble failed: "
                f"{' '.join(event.detail.split())[:160]}"
            )
        if event.step == TASKS:
            self._unanswered[event.generation] = event.detail
            return None
        if event.state == "failed" and event.detail:
            self._reasons[event.generation] = event.detail
        if event.state != "start":
            return None
        entry = self.running.setdefault(event.generation, Running(event.step, time.monotonic()))
        entry.step = event.step
        return f"generation {event.generation}: {event.step}" if event.step in _LONG_STEPS else None

    def best_text(self) -> str:
        """Return the best score so far, such as ``best 0.9871 (generation 8)``, or ""."""
        return f"best {self.best[0]:.4f} (generation {self.best[1]})" if self.best else ""

    def _finish(self, event: StepEvent) -> str:
        self.running.pop(event.generation, None)
        self._count(event.generation, event.score)
        reason = " ".join(self._reasons.pop(event.generation, "").split())[:160]
        parts = [
            f"generation {event.generation}:",
            "no score" if event.score is None else f"score {event.score:.4f}",
        ]
        if event.state == "failed":
            parts.append(f"failed ({event.detail}{': ' + reason if reason else ''})")
        elif unanswered := " ".join(self._unanswered.pop(event.generation, "").split())[:160]:
            parts.append(f"({unanswered})")
        parts += [f"in {format_duration(event.duration_s)};", self.best_text() or "no score yet"]
        return " ".join(parts)

    def _count(self, generation: str, score: float | None) -> None:
        self.done += 1
        if score is not None and (self.best is None or score > self.best[0]):
            self.best = (score, generation)


def plain_progress(tracker: Tracker) -> OnEvent:
    """Return a function that prints one line for each important event, with the seconds since the
    start.
    """
    started = time.monotonic()

    def on_event(event: StepEvent) -> None:
        if line := tracker.take(event):
            note(f"{time.monotonic() - started:8.1f}s  {line}")

    return on_event
