"""The end of ``hyperrun generate`` and ``resume``: the table, the plots and the next step, however
the run ended.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from hyperruntime.cli.loop.generations import ensembles_failed, print_generations, run_to_json
from hyperruntime.cli.loop.report import plots_at_end
from hyperruntime.cli.messages import note
from hyperruntime.cli.signals import EXIT_BY_SIGNAL
from hyperruntime.cli.tables import print_json
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.loop.run.run import RunSummary
from hyperruntime.loop.run_files.archive import RunView, load_run
from hyperruntime.loop.run_files.options import GenerateOptions

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
    if as_json:
        facts = {
            "seed": options.seed,
            "interrupted": summary.interrupted,
            "used_up": summary.used_up or None,
        }
        print_json(run_to_json(summary.run_dir, summary.generations, **facts))
    else:
        if summary.generations:
            print_generations(summary.generations)
        click.echo(summary.run_dir)
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
    if as_json:
        facts = {
            "seed": view.seed,
            "interrupted": view.state == "interrupted",
            "ended": view.ended or None,
        }
        print_json(run_to_json(view.run_dir, view.generations, **facts))
    else:
        if view.generations:
            print_generations(view.generations)
        click.echo(view.run_dir)
    why = f"the run ended early: {view.ended}; " if view.ended else ""
    note(f"{why}{_how_to_resume(view.run_dir)}")
    plots_at_end(view.run_dir, view.generations, view.options)


def _how_to_resume(run_dir: str) -> str:
    return f"continue with: hyperrun resume {shlex.quote(run_dir)}"
