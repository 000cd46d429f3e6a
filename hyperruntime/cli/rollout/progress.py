"""Show the progress of a rollout run on standard error: a bar on a terminal, plain lines
elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from hyperruntime.cli.messages import note
from hyperruntime.rollout.run.progress import RolloutEvent
from hyperruntime.rollout.run_files.record import SCORED
from hyperruntime.units import format_duration

_LINES_EVERY_S = 1.0


@contextmanager
def shown_progress() -> Iterator[Callable[[RolloutEvent], None]]:
    """Show the progress, as a bar if standard error is a terminal, else as lines; yield the
    function for events.
    """
    if sys.stderr.isatty():
        display = BarDisplay()
        with display.shown():
            yield display.on_event
    else:
        yield PlainDisplay().on_event


class PlainDisplay:
    """Prints a line for each failure, for scored trajectories at most once per second, and for the
    last one.
    """

    def __init__(self) -> None:
        """Start the clock."""
        self._started = time.monotonic()
        self._said = 0.0

    def on_event(self, event: RolloutEvent) -> None:
        """Print the event's line, if it has one."""
        if event.kind != "done" or event.trajectory is None:
            return
        now = time.monotonic() - self._started
        failed = event.trajectory.status != SCORED
        if failed or event.done == event.wanted or now - self._said >= _LINES_EVERY_S:
            self._said = now
            note(f"{now:8.1f}s  {line_of(event)}")


class BarDisplay:
    """Draws a bar with the number of done trajectories and the mean reward; failures stay above it
    as text.
    """

    def __init__(self) -> None:
        """Make the bar."""
        from rich import progress

        from hyperruntime.cli.display import DisplayConsole

        counts = (
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.description}"),
        )
        times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
        self._console = DisplayConsole()
        self._bar = progress.Progress(
            *counts,
            *times,
            console=self._console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
        )
        self._task = self._bar.add_task("", start=False, visible=False)
        self._running = 0

    def shown(self) -> AbstractContextManager[None]:
        """Draw the bar inside the block."""
        from hyperruntime.cli.display import displayed

        return displayed(self._bar.live, self._console)

    def on_event(self, event: RolloutEvent) -> None:
        """Update the bar."""
        self._bar.start_task(self._task)
        self._running += 1 if event.kind == "start" else -1
        mean = "" if event.mean_reward is None else f"mean reward {event.mean_reward:.3f}, "
        text = f"{mean}{self._running} running"
        self._bar.update(
            self._task, visible=True, total=event.wanted, completed=event.done, description=text
        )
        if event.trajectory is not None and event.trajectory.status != SCORED:
            self._console.print(line_of(event), style="yellow", markup=False)


def line_of(event: RolloutEvent) -> str:
    """Return one line about a finished trajectory."""
    trajectory = event.trajectory
    assert trajectory is not None, "only for the event of a finished trajectory"
    took = format_duration(trajectory.timing.get("total_s", 0.0))
    if trajectory.status == SCORED:
        what = (
            f"reward {trajectory.reward:.3f}, {trajectory.turns} turns, "
            f"{trajectory.stop_reason}, in {took}"
        )
    else:
        error = trajectory.error or {}
        message = " ".join(str(error.get("message", "")).split())[:200]
        what = f"{trajectory.status}: {error.get('kind')} in {error.get('phase')}: {message}"
    mean = "" if event.mean_reward is None else f"; mean {event.mean_reward:.3f}"
    return f"{event.done}/{event.wanted}  {trajectory.id}: {what}{mean}"
