"""Show the progress of a rollout run on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Self

from hyperruntime.cli.messages import note
from hyperruntime.concurrency.closing import Closing
from hyperruntime.rollout.run.runner import RolloutEvent
from hyperruntime.rollout.run_files.record import SCORED
from hyperruntime.units import format_duration

if TYPE_CHECKING:
    from rich.progress import TaskID

_LINES_EVERY_S = 1.0


def make_display() -> AbstractContextManager[PlainDisplay | BarDisplay]:
    """Return the bar if standard error is a terminal, else the display of plain lines."""
    return BarDisplay() if sys.stderr.isatty() else nullcontext(PlainDisplay())


class PlainDisplay:
    """Prints a line for each failure, for scored trajectories at most once per second, and for the last one."""

    def __init__(self) -> None:
        """Start the clock."""
        self._started, self._said = time.monotonic(), 0.0

    def on_event(self, event: RolloutEvent) -> None:
        """Print the event's line, if it has one."""
        if event.kind != "done" or event.trajectory is None:
            return
        now = time.monotonic() - self._started
        failed = event.trajectory.status != SCORED
        if failed or event.done == event.wanted or now - self._said >= _LINES_EVERY_S:
            self._said = now
            note(f"{now:8.1f}s  {line_of(event)}")


class BarDisplay(Closing):
    """Draws a bar with the number of done trajectories and the mean reward; failures stay above it as text."""

    def __init__(self) -> None:
        """Make the bar; it is drawn inside the ``with`` block."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)
        self._task: TaskID | None = None
        self._running = 0

    def on_event(self, event: RolloutEvent) -> None:
        """Update the bar."""
        if self._task is None:
            self._task = self._progress.add_task("", total=event.wanted)
        self._running += 1 if event.kind == "start" else -1
        mean = "" if event.mean_reward is None else f"mean reward {event.mean_reward:.3f}, "
        self._progress.update(self._task, completed=event.done, description=f"{mean}{self._running} running")
        if event.trajectory is not None and event.trajectory.status != SCORED:
            self._progress.console.print(line_of(event), style="yellow", markup=False)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def line_of(event: RolloutEvent) -> str:
    """Return one line about a finished trajectory."""
    trajectory = event.trajectory
    assert trajectory is not None, "only for the event of a finished trajectory"
    took = format_duration(trajectory.timing.get("total_s", 0.0))
    if trajectory.status == SCORED:
        what = f"reward {trajectory.reward:.3f}, {trajectory.turns} turns, {trajectory.stop_reason}, in {took}"
    else:
        error = trajectory.error or {}
        message = " ".join(str(error.get("message", "")).split())[:200]
        what = f"{trajectory.status}: {error.get('kind')} in {error.get('phase')}: {message}"
    mean = "" if event.mean_reward is None else f"; mean {event.mean_reward:.3f}"
    return f"{event.done}/{event.wanted}  {trajectory.id}: {what}{mean}"
