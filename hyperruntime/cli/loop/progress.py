"""The progress of the generate loop, for the display."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from hyperruntime.cli.loop.generations import ensembles_failed, print_generations, run_to_json
from hyperruntime.cli.loop.report import plots_at_end
from hyperruntime.cli.messages import note
from hyperruntime.cli.progress import Line, Running
from hyperruntime.cli.signals import EXIT_BY_SIGNAL
from hyperruntime.cli.tables import print_json
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.loop.run.run import RunSummary
from hyperruntime.loop.run_files.archive import RunView, load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import ENSEMBLE, TASKS, GenerationRecord
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.units import format_duration

FINISHED = "generation"
_LONG_STEPS = ("meta agent", "evaluate")


class Tracker:
    """The progress of a run, computed from its events.

    Attributes:
        total: number of generations of the run, the first included.
        done: number of finished generations.
        best: score and id of the best generation so far, or None.
        running: the running generations, by name.
    """

    unit = "generations"

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

    def take(self, event: StepEvent) -> Line | None:
        """Process an event; return a line about it, or None if it needs none."""
        name = f"generation {event.generation}"
        if event.step == FINISHED:
            return Line(self._finish(event, name), is_bad=event.state == "failed")
        if event.step == ENSEMBLE:
            return Line(f"{name}: its ensemble failed: {_short(event.detail)}", is_bad=True)
        if event.step == TASKS:
            self._unanswered[event.generation] = event.detail
            return None
        if event.state == "failed" and event.detail:
            self._reasons[event.generation] = event.detail
        if event.state != "start":
            return None
        self.running.setdefault(name, Running(event.step)).step = event.step
        return Line(f"{name}: {event.step}", is_minor=True) if event.step in _LONG_STEPS else None

    def summary(self) -> str:
        """Return the best score so far, such as ``best 0.9871 (generation 8)``, or ""."""
        return f"best {self.best[0]:.4f} (generation {self.best[1]})" if self.best else ""

    def _finish(self, event: StepEvent, name: str) -> str:
        self.running.pop(name, None)
        self._count(event.generation, event.score)
        reason = _short(self._reasons.pop(event.generation, ""))
        parts = [f"{name}:", "no score" if event.score is None else f"score {event.score:.4f}"]
        if event.state == "failed":
            parts.append(f"failed ({event.detail}{': ' + reason if reason else ''})")
        elif unanswered := _short(self._unanswered.pop(event.generation, "")):
            parts.append(f"({unanswered})")
        parts += [f"in {format_duration(event.duration_s)};", self.summary() or "no score yet"]
        return " ".join(parts)

    def _count(self, generation: str, score: float | None) -> None:
        self.done += 1
        if score is not None and (self.best is None or score > self.best[0]):
            self.best = (score, generation)


def _short(text: str) -> str:
    return " ".join(text.split())[:160]


_PLOTS_S = 5.0  # after a signal: a scheduler kills the process soon, and they can be drawn later


def finish(summary: RunSummary, number: int, options: GenerateOptions, as_json: bool) -> int:
    """Print the result of a run, and the next step on standard error; draw its plots; return the
    exit code.

    The plots of a finished run come first, because the reader of standard output may be gone; after
    an interrupt they come last, because little time is left.

    Args:
        summary: the result of the run.
        number: as for :func:`exit_code`.
        options: the options of the run.
        as_json: whether to print the result as JSON.
    """
    if not summary.interrupted:
        plots_at_end(summary.run_dir, summary.generations, options)
    facts = {
        "seed": options.seed,
        "interrupted": summary.interrupted,
        "used_up": summary.used_up or None,
    }
    _print_run(summary, facts, as_json)
    if summary.interrupted:
        note(f"interrupted; {_how_to_resume(summary.run_dir)}")
        plots_at_end(summary.run_dir, summary.generations, options, _PLOTS_S)
    elif summary.used_up:
        note(
            f"{summary.used_up}; resume with a larger one: hyperrun resume "
            f"{shlex.quote(summary.run_dir)} --budget-..."
        )
    elif summary.is_fruitless:
        note(
            f"no new generation has a score; `hyperrun status {shlex.quote(summary.run_dir)}` "
            "says why"
        )
    if reason := ensembles_failed(summary.generations):
        note(
            f"the ensembles of all new generations failed, the last one: {reason}; see its "
            "generate.log"
        )
    return exit_code(summary, number)


def exit_code(summary: RunSummary, number: int) -> int:
    """Return the exit code of a run.

    Args:
        summary: the run's result.
        number: the signal that ended the run, or 0; used only for an interrupted run, where 0 means
            SIGINT.
    """
    if summary.interrupted:
        return EXIT_BY_SIGNAL + (number or signal.SIGINT)
    return 1 if summary.is_fruitless or ensembles_failed(summary.generations) else 0


@contextmanager
def showing_what_there_is(run_dir: Callable[[], Path | None], as_json: bool) -> Iterator[None]:
    """If an error ends the block, first show the run so far: its table, how to resume it, and its
    plots.

    Args:
        run_dir: returns the directory of the run; None while there is none.
        as_json: whether to print the run as JSON.
    """
    try:
        yield
    except BaseException:
        if (path := run_dir()) is not None:
            with suppress(HyperRuntimeError, OSError):  # the first error is reported
                _show(load_run(path), as_json)
        raise


def _show(view: RunView, as_json: bool) -> None:
    if view.state == "running":  # by another process
        return
    is_interrupted = view.state == "interrupted"
    facts = {"seed": view.seed, "interrupted": is_interrupted, "ended": view.ended or None}
    _print_run(view, facts, as_json)
    why = f"the run ended early: {view.ended}; " if view.ended else ""
    note(f"{why}{_how_to_resume(view.run_dir)}")
    plots_at_end(view.run_dir, view.generations, view.options)


def _print_run(run: RunSummary | RunView, facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(run_to_json(run.run_dir, run.generations, **facts))
        return
    if run.generations:
        print_generations(run.generations)
    click.echo(run.run_dir)


def _how_to_resume(run_dir: str) -> str:
    return f"continue with: hyperrun resume {shlex.quote(run_dir)}"
