"""Make the runs of a study: ordinary runs, of which one that fails does not end the others."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import attrs

from hyperruntime.errors import HyperRuntimeError, RunError
from hyperruntime.logs import get_logger
from hyperruntime.loop.run.opened_run import create_run
from hyperruntime.loop.run.plan import NewRunPlan, plan_run
from hyperruntime.loop.run.run import RunSummary, place_run
from hyperruntime.loop.run_files.layout import PREFIX, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.study import STUDY_FILE, STUDY_PREFIX, Study, is_study, write_study
from hyperruntime.loop.workbench.open_containers import POLL_S, on_interrupt
from hyperruntime.runs.lock import RunLock, is_abandoned, is_unowned_remnant
from hyperruntime.storage.atomic import make_directory

log = get_logger(__name__)


@attrs.frozen(kw_only=True)
class StudyPlan:
    """The checked inputs of a new study, whose directory is not made yet.

    Attributes:
        study: its directory and the names of its runs.
        plans: of its runs.
    """

    study: Study
    plans: tuple[NewRunPlan, ...]


@attrs.frozen(kw_only=True)
class StudyRun:
    """The end of one run of a study.

    Attributes:
        run_dir: its directory.
        summary: its result; None if it failed or was not begun.
        error: why it failed; None if it did not.
    """

    run_dir: Path
    summary: RunSummary | None = None
    error: HyperRuntimeError | None = None


def plan_study(options: GenerateOptions, repeat: int) -> StudyPlan:
    """Return the plan of a new study; make nothing, but remove what a killed start left.

    Args:
        options: those of each run, but its seed, name, directory and share of ``parallel``.
        repeat: number of runs; they have the seed of the options and the next ones.

    Raises:
        RunError: the directory exists already.
        HyperRuntimeError: as for :func:`~hyperruntime.loop.run.plan.plan_run`.
    """
    options = options.settled()
    assert options.seed is not None
    assert options.run_id is not None
    root = study_directory(options.output_dir_parent, options.run_id)
    _remove_remnant(root)
    if os.path.lexists(root):
        raise RunError(
            f"study directory {str(root)!r} exists already; "
            f"{_next_step(root)}, or give another --run-id"
        )
    ids = [f"{options.run_id}_{number}" for number in range(1, repeat + 1)]
    own = [
        attrs.evolve(options, run_id=one, seed=options.seed + number, output_dir_parent=str(root))
        for number, one in enumerate(ids)
    ]
    plans = tuple(map(plan_run, own))
    names = tuple(plan.layout.root.name for plan in plans)
    return StudyPlan(study=Study(root=root, names=names, parallel=options.parallel), plans=plans)


def _remove_remnant(root: Path) -> None:
    """Remove what a killed start left: its lease is released or stale, its file, which is written
    last, does not exist, and no run has a generation.
    """
    if is_study(root) or _runs_with_results(root):
        return
    if is_abandoned(root) or is_unowned_remnant(root):
        shutil.rmtree(root, ignore_errors=True)


def _runs_with_results(root: Path) -> list[Path]:
    journals = [Layout(run).journal for run in sorted(root.glob(f"{PREFIX}*"))]
    return [one.parent for one in journals if one.is_file() and one.stat().st_size]


def _next_step(root: Path) -> str:
    if is_study(root):
        return f"resume it with `hyperrun resume {shlex.quote(str(root))}`"
    if runs := _runs_with_results(root):
        return (
            f"it has no {STUDY_FILE}, but runs with generations: "
            f"resume each with `hyperrun resume`, such as {shlex.quote(str(runs[0]))}"
        )
    return "remove it"


def study_directory(parent: str, run_id: str) -> Path:
    """Return the directory of a study with this id."""
    return Path(parent).absolute() / f"{STUDY_PREFIX}{run_id}"


def create_study(plan: StudyPlan) -> Study:
    """Make the directory of a study with all its runs, none of which is begun; remove it on an
    error.

    All runs take the agent as it is now, also those that begin much later.

    Raises:
        HyperRuntimeError: as for :func:`~hyperruntime.loop.run.opened_run.create_run`.
        StorageError: the directory exists, or a file cannot be written.
    """
    study = plan.study
    make_directory(study.root, fresh=True)
    with RunLock(study.root):
        try:
            for one in plan.plans:
                placed = place_run(one)
                with RunLock(placed.layout.root):
                    create_run(placed)
            write_study(study)
        except BaseException:
            shutil.rmtree(study.root, ignore_errors=True)
            raise
    return study


class Interrupts:
    """Passes an interrupt of the main thread to the runs, which are made in other threads.

    Attributes:
        stopping: whether the study was interrupted.
    """

    def __init__(self) -> None:
        """Nothing was interrupted."""
        self.stopping = False
        self._calls: list[Callable[[], None]] = []

    def stop(self) -> None:
        """Interrupt all runs; takes no lock, because a signal handler calls it."""
        self.stopping = True
        for call in tuple(self._calls):
            call()

    @contextmanager
    def calling(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` on an interrupt inside the ``with`` block, also if it came before."""
        self._calls.append(stop)
        try:
            if self.stopping:
                stop()
            yield
        finally:
            self._calls.remove(stop)


def run_study(
    study: Study, make: Callable[[int, Interrupts], RunSummary], at_once: int
) -> tuple[StudyRun, ...]:
    """Make or resume the runs of a study that this process then owns; return how each ended.

    In the main thread, SIGINT and SIGTERM interrupt all runs, and no further one is begun.

    Args:
        study: the study.
        make: resumes the run with this place in the study, in a thread; it passes interrupts on.
        at_once: how many runs are made at once.

    Raises:
        RunLockedError: a live process owns the study.
        StorageError: the file of the study cannot be written.
    """
    interrupts = Interrupts()

    def one(place: int) -> RunSummary | None:
        if interrupts.stopping:
            return None
        try:
            return make(place, interrupts)
        except KeyboardInterrupt:  # it came before the run listened
            return None

    with RunLock(study.root) as lock:
        lock.on_lost(interrupts.stop)
        write_study(study)
        with (
            on_interrupt(interrupts.stop),
            ThreadPoolExecutor(at_once, thread_name_prefix="hyperruntime-run") as executor,
        ):
            futures = [executor.submit(one, place) for place in range(len(study.names))]
            try:
                while wait(futures, timeout=POLL_S).not_done:
                    pass
            except BaseException:
                interrupts.stop()
                raise
        return _ends(study, futures)


def _ends(study: Study, futures: Sequence[Future[RunSummary | None]]) -> tuple[StudyRun, ...]:
    ends = []
    for run_dir, future in zip(study.runs, futures, strict=True):
        error = future.exception()
        if error is not None and not isinstance(error, HyperRuntimeError):
            raise error
        if error is not None:
            log.warning("run of a study failed", run=run_dir.name, error=str(error))
            ends.append(StudyRun(run_dir=run_dir, error=error))
        else:
            ends.append(StudyRun(run_dir=run_dir, summary=future.result()))
    return tuple(ends)
