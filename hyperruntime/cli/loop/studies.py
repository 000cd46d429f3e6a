"""A study, several runs of the same options with other seeds: make and resume it."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime.cli.command import State
from hyperruntime.cli.consent import with_consent
from hyperruntime.cli.live_page import live_page
from hyperruntime.cli.loop.machines import ensure_image, machines
from hyperruntime.cli.loop.progress import Tracker, exit_code
from hyperruntime.cli.loop.report import plots_at_end
from hyperruntime.cli.loop.study_table import study_columns, study_to_json, study_views
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.progress import Line, Running, shown_progress
from hyperruntime.cli.signals import EXIT_BY_SIGNAL, drained_by_signals, last_signal
from hyperruntime.cli.tables import print_columns, print_json
from hyperruntime.errors import ArchiveError, RunError, StorageError
from hyperruntime.loop.run.plan import ResumePlan, RunPlan, plan_resume
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run.study import Interrupts, StudyRun, create_study, plan_study, run_study
from hyperruntime.loop.run_files.archive import load_run, read_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.study import STUDY_PREFIX, Study, read_study
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.storage.atomic import make_directory


class StudyTracker:
    """The progress of a study, computed from the events of its runs; thread-safe.

    Attributes:
        runs: the progress of each run.
    """

    unit: str = "generations"

    def __init__(self, runs: Sequence[Tracker]) -> None:
        """Start with the progress of each run."""
        self.runs = tuple(runs)
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """Number of generations of all runs."""
        return sum(run.total for run in self.runs)

    @property
    def done(self) -> int:
        """Number of finished generations."""
        return sum(run.done for run in self.runs)

    @property
    def running(self) -> Mapping[str, Running]:
        """The running generations, by run and generation."""
        return {
            f"run {number}, {name}": one
            for number, run in enumerate(self.runs, 1)
            for name, one in tuple(run.running.items())
        }

    def take(self, event: tuple[int, StepEvent]) -> Line | None:
        """Process an event of the run with this place; return a line about it."""
        place, step = event
        with self._lock:
            line = self.runs[place].take(step)
        return line and attrs.evolve(line, text=f"run {place + 1}, {line.text}")

    def summary(self) -> str:
        """Return the best score of all runs, or ""."""
        found = [(run.best[0], number) for number, run in enumerate(self.runs, 1) if run.best]
        best = max(found, default=None, key=lambda one: one[0])
        return f"best {best[0]:.4f} (run {best[1]})" if best else ""


def start_study(
    state: State, options: GenerateOptions, repeat: int, cluster: Path | None, *, as_json: bool
) -> int:
    """Make a study and all its runs; return the exit code.

    Args:
        state: the global options.
        options: the options of each run, but seed and name.
        repeat: number of runs.
        cluster: as for :func:`~hyperruntime.cli.loop.generate.go_on`.
        as_json: whether to print the result as JSON.

    Raises:
        WrongUsageError: the study directory exists or cannot be made.
        HyperRuntimeError: as for a run.
    """
    try:
        plan = plan_study(options, repeat)
        make_directory(plan.study.root.parent)
    except (RunError, StorageError) as error:
        raise WrongUsageError(str(error)) from error
    _check_engine(state, plan.plans, cluster)  # no study of runs that cannot begin is left
    study = create_study(plan)
    seeds = [one.options.seed for one in plan.plans]
    note(f"study {study.root}: {repeat} runs, seeds {seeds[0]} to {seeds[-1]}")
    return resume_study(state, study.root, {}, cluster, as_json=as_json)


def resume_study(
    state: State,
    root: Path,
    changes: Mapping[str, Any],
    cluster: Path | None,
    *,
    trust: bool = False,
    wait: bool = False,
    as_json: bool,
) -> int:
    """Make what is missing in the runs of a study; return the exit code.

    Args:
        state: the global options.
        root: the study directory.
        changes: new values of options, by field; None: unchanged. ``parallel`` is that of the whole
            study.
        cluster: as for :func:`~hyperruntime.cli.loop.generate.go_on`; the runs are then made one
            after the other.
        trust: as for :func:`~hyperruntime.loop.run.plan.plan_resume`.
        wait: as for :func:`~hyperruntime.loop.run.plan.plan_resume`.
        as_json: whether to print the result as JSON.

    Raises:
        HyperRuntimeError: the study cannot be resumed; the errors of its runs are shown.
    """
    study = read_study(root)
    study = attrs.evolve(study, parallel=changes.get("parallel") or study.parallel)
    at_once, share = (study.runs_at_once, study.share) if cluster is None else (1, study.parallel)
    changes = {**changes, "parallel": share}
    plans = [_plan(path, changes, trust=trust, wait=wait) for path in study.runs]
    _check_engine(state, [plan for plan in plans if plan is not None], cluster)
    progress = StudyTracker(list(map(_tracker, study.runs, plans)))
    with (
        last_signal(state) as number,
        drained_by_signals(state, here=cluster is None) as drain,
        shown_progress(progress) as on_event,
        live_page(state) as start_page,
    ):

        def make(place: int, interrupts: Interrupts) -> RunSummary:
            plan = plans[place] or plan_resume(study.runs[place], changes=changes)
            with machines(state, plan, cluster) as made_on:
                return resume_run(
                    made_on.runtime,
                    made_on.with_executor(plan),
                    lambda event: on_event((place, event)),
                    on_start=start_page,
                    drain=drain,
                    interrupts=interrupts.calling,
                )

        ends = run_study(study, make, at_once)
    return _finish(study, ends, number(), as_json=as_json)


def _check_engine(state: State, plans: Sequence[RunPlan], cluster: Path | None) -> None:
    """Make the images of runs here, once for all; an engine that does not work is an error of the
    study, not of each run.
    """
    if cluster is not None:
        return
    with state.open_runtime() as runtime:
        for image in dict.fromkeys(plan.image for plan in plans):
            ensure_image(runtime, image)


def options_of_study(root: Path, repeat: int) -> GenerateOptions:
    """Return the options with which a study was started, of its first run, to compare given ones.

    Raises:
        WrongUsageError: the study has another number of runs.
        ArchiveError: the study or its first run cannot be read.
    """
    study = read_study(root)
    if repeat != len(study.names):
        raise WrongUsageError(
            f"study {str(root)!r} has {len(study.names)} runs, not {repeat}; give --repeat "
            f"{len(study.names)}, or another --run-id"
        )
    options, _ = read_run(Layout(study.runs[0]))
    return attrs.evolve(options, run_id=root.name.removeprefix(STUDY_PREFIX))


def _plan(path: Path, changes: Mapping[str, Any], *, trust: bool, wait: bool) -> ResumePlan | None:
    """Return the plan of resuming a run; None if its files are damaged: the others go on."""
    make = partial(plan_resume, path, changes=changes, wait=wait)
    try:
        return with_consent(lambda trust: make(trust=trust), trust=trust)
    except ArchiveError:
        return None


def _tracker(path: Path, plan: ResumePlan | None) -> Tracker:
    if plan is None:
        return Tracker(0)
    view = attrs.evolve(load_run(path), options=plan.options)
    return Tracker(view.wanted, view.generations)


def _finish(study: Study, ends: Sequence[StudyRun], number: int, *, as_json: bool) -> int:
    """Print the result of a study, and draw the plots of its runs; return the exit code."""
    summaries = [one.summary for one in ends if one.summary is not None]
    is_interrupted = any(one.interrupted for one in summaries) or any(
        one.summary is None and one.error is None for one in ends
    )
    if not is_interrupted:
        for one in summaries:
            plots_at_end(one.run_dir, one.generations, load_run(one.run_dir).options, hint=False)
    views = study_views(study)
    errors = {one.run_dir.name: str(one.error) for one in ends if one.error is not None}
    if as_json:
        print_json(study_to_json(study, views, errors=errors))
    else:
        print_columns(study_columns(views))
        click.echo(study.root)
    for name, error in errors.items():
        note(f"{name} failed: {error}")
    shown = shlex.quote(str(study.root))
    if is_interrupted:
        note(f"interrupted; continue with: hyperrun resume {shown}")
        return EXIT_BY_SIGNAL + (number or signal.SIGINT)
    note(f"look at it with: hyperrun report {shown}")
    return 1 if errors or any(exit_code(one, number) for one in summaries) else 0
