"""Start or resume a run: choose parents, make generations and archive them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path

import attrs

from hyperruntime.errors import RunError, StorageError
from hyperruntime.logs import get_logger
from hyperruntime.loop.generation.adapter import RunContext
from hyperruntime.loop.generation.generation import make_generation
from hyperruntime.loop.generation.parent_program import ParentProgram, Question, Said
from hyperruntime.loop.generation.phases import Phases
from hyperruntime.loop.generation.publish import finish_generation, mark_generation, parent_mark
from hyperruntime.loop.run.opened_run import OpenedRun, create_run, reopen_run
from hyperruntime.loop.run.plan import (
    NewRunPlan,
    ResumePlan,
    RunPlan,
    plan_run,
)
from hyperruntime.loop.run_files.layout import LOG
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.run_files.selection import SelectionRule, choose_parent
from hyperruntime.loop.workbench.container import GenerationPlan
from hyperruntime.loop.workbench.events import OnEvent
from hyperruntime.loop.workbench.failures import RunInterruptedError
from hyperruntime.loop.workbench.model_access import ModelAccess
from hyperruntime.loop.workbench.open_containers import (
    POLL_S,
    LoopRuntime,
    on_interrupt,
)
from hyperruntime.runs.drain import Drain
from hyperruntime.runs.lock import RunLock
from hyperruntime.runs.retry import ITEMS_IN_A_ROW, Streak
from hyperruntime.runs.run_file import INTERRUPTED, note_end, reason_of
from hyperruntime.storage.atomic import make_directory

log = get_logger(__name__)


MakeExecutor = Callable[[int], Executor]
CallOnInterrupt = Callable[[Callable[[], None]], AbstractContextManager[None]]


@attrs.frozen(kw_only=True, eq=False)
class GenerationTask:
    """Make one generation; its files are then in the run's ``work`` directory.

    Attributes:
        context: context of the run, with this machine's runtime.
        plan: plan of the generation.
        first: as for :func:`~hyperruntime.loop.generation.generation.make_generation`.
    """

    context: RunContext
    plan: GenerationPlan
    first: int = 1

    def __call__(self) -> GenerationRecord:
        """Make it with the context's runtime; the errors are those of ``make_generation``."""
        return make_generation(self.context, self.plan, self.first)


@attrs.frozen(kw_only=True, eq=False)
class QuestionTask:
    """Ask a generation's own program for a parent.

    Attributes:
        context: context of the run, with this machine's runtime.
        question: what is asked.
    """

    context: RunContext
    question: Question

    def __call__(self) -> Said:
        """Ask with the context's runtime; the errors are those of ``Question.ask``."""
        return self.question.ask(self.context)


@attrs.frozen(kw_only=True)
class RunSummary:
    """The result of a run.

    Attributes:
        run_dir: the run directory.
        generations: the finished generations, in archive order.
        best: the generation with the highest score, or None.
        interrupted: whether the run was interrupted; it can be resumed.
        used_up: one sentence about the budget that ended the run early, or ""; a larger budget can
            resume it.
        made: the generations that this call made, in archive order.
    """

    run_dir: str
    generations: tuple[GenerationRecord, ...]
    best: GenerationRecord | None
    interrupted: bool
    used_up: str = ""
    made: tuple[GenerationRecord, ...] = ()

    @property
    def is_fruitless(self) -> bool:
        """Whether no generation has a score, or none of the new ones that this call made, if it
        made any.
        """
        new = [record for record in self.made if record.parent is not None]
        return self.best is None or (bool(new) and all(record.score is None for record in new))


def local_executor(workers: int) -> Executor:
    """Return the executor ``local``, which runs at most ``workers`` generations at once, in threads
    of this process.

    A generation's work is done by its containers; the thread waits for them.
    """
    return ThreadPoolExecutor(max_workers=workers, thread_name_prefix="hyperruntime-generation")


def start_run(
    runtime: LoopRuntime,
    plan: NewRunPlan,
    on_event: OnEvent | None = None,
    *,
    on_start: Callable[[Path], None] | None = None,
    drain: Drain | None = None,
) -> RunSummary:
    """Make a new run and run all its generations.

    In the main thread, SIGINT and SIGTERM interrupt the run: no container is started, open
    containers are ended, and the run can be resumed.

    Args:
        runtime: an open runtime.
        plan: result of :func:`~hyperruntime.loop.run.plan.plan_run`.
        on_event: called with each event, from any thread, one at a time; None: no events.
        on_start: called with the run directory when it is complete, before the first generation;
            None: nothing is called.
        drain: ends the run without interrupting the generations that it has begun; None: nothing
            does.

    Raises:
        ImageNotFoundError: the image does not exist and cannot be made; no file was written.
        AgentError: the agent cannot be used.
        RepositoryError: the agent's repository cannot be used, for example because it changed after
            planning.
        RunError: the first generation failed, or the infrastructure failed repeatedly.
        StorageError: the run directory exists already, or a file cannot be written.
    """
    image = runtime.images.ensure(plan.image)
    plan = place_run(plan)
    with RunLock(plan.layout.root) as lock:
        opened = create_run(plan)
        with ModelAccess(plan.gateway, plan.options) as models:
            run = _Run(opened, opened.context(runtime, image, on_event, models), lock, models)
            if on_start is not None:
                on_start(plan.layout.root)
            return run.run(plan, drain or Drain())


def place_run(plan: NewRunPlan) -> NewRunPlan:
    """Make the directory of a new run, and return its plan: another one if another process made its
    directory.

    Raises:
        StorageError: the directory cannot be made, or exists and its name was chosen by the user.
    """
    while True:
        try:
            make_directory(plan.layout.root, fresh=True)
        except StorageError as error:
            if plan.asked.run_id is not None or not isinstance(error.__cause__, FileExistsError):
                raise
            again = plan_run(attrs.evolve(plan.asked, seed=plan.options.seed))
            plan = attrs.evolve(again, make_executor=plan.make_executor)
        else:
            return plan


def resume_run(
    runtime: LoopRuntime,
    plan: ResumePlan,
    on_event: OnEvent | None = None,
    *,
    on_start: Callable[[Path], None] | None = None,
    drain: Drain | None = None,
    interrupts: CallOnInterrupt = on_interrupt,
) -> RunSummary:
    """Store the changed options of a run, complete the steps that a kill left out, and run all
    missing generations.

    Args:
        runtime: an open runtime.
        plan: result of :func:`~hyperruntime.loop.run.plan.plan_resume`.
        on_event: as for :func:`start_run`.
        on_start: called with the run directory when nothing refuses the resume; None: nothing is
            called.
        drain: as for :func:`start_run`.
        interrupts: calls a function on an interrupt, inside a ``with`` block; the usual one listens
            for signals in the main thread.

    Raises:
        ArchiveError: a file of the run cannot be read.
        RunLockedError: a live process owns the run.
        RunError: another process changed the options since the resume was planned; or as for
            :func:`start_run`.
        HyperRuntimeError: as for :func:`start_run`.
    """
    image = runtime.images.ensure(plan.image)
    with RunLock(plan.layout.root) as lock:
        opened = reopen_run(plan, runtime.info.reclaim_args)
        with ModelAccess(plan.gateway, plan.options) as models:
            run = _Run(opened, opened.context(runtime, image, on_event, models), lock, models)
            if on_start is not None:
                on_start(plan.layout.root)
            return run.run(plan, drain or Drain(), interrupts)


class _Run:
    """A run in progress."""

    def __init__(
        self, opened: OpenedRun, context: RunContext, lock: RunLock, models: ModelAccess
    ) -> None:
        self._opened = opened
        self._archive = opened.archive
        self._lock = lock
        self._models = models
        self._context = context
        self._options = context.options
        self._containers = context.containers
        lock.on_lost(self._containers.stop)
        self._executor: Executor
        self._rule: SelectionRule
        self._pending: dict[Future[GenerationRecord], GenId] = {}
        self._streak = Streak(ITEMS_IN_A_ROW)
        self._made: list[GenId] = []
        self._drain = Drain()
        self._evolved: ParentProgram | None = None
        if self._options.edit_select_parent:
            self._evolved = ParentProgram(context, self._archive, opened.commit_of, self._ask)
        self._views = context.adapter.open_views(self._options, context.layout, context.domains)
        self._check_first()

    def _check_first(self) -> None:
        """Refuse a run whose first generation failed, so that no other has a parent."""
        if self._opened.start.genid not in self._archive or self._archive.first.failure is None:
            return
        if not any(record.valid_parent for record in self._archive):
            raise RunError(self._first_failure(self._archive.first) + "; start another run")

    def run(
        self, plan: RunPlan, drain: Drain, interrupts: CallOnInterrupt = on_interrupt
    ) -> RunSummary:
        """Make all missing generations; return the summary of the run."""
        self._rule = plan.rule
        self._drain = drain
        for problem in self._archive.problems:
            log.warning("archive problem", problem=problem)
        self._executor = executor = plan.make_executor(self._options.parallel)
        reason = ""
        try:
            with interrupts(self._containers.stop):
                self._run_all()
        except BaseException as error:
            reason = reason_of(error)
            self._containers.stop()
            self._containers.close_all()
            raise
        finally:
            executor.shutdown(wait=True, cancel_futures=True)
            if self._lock.is_ours:
                self._finish_files(reason)
        self._lock.check()
        return RunSummary(
            run_dir=str(self._context.layout.root),
            generations=tuple(self._archive),
            best=self._archive.best(),
            interrupted=self._is_interrupted,
            used_up=self._models.used_up if self._lacks_any() else "",
            made=tuple(record for record in self._archive if record.genid in self._made),
        )

    @property
    def _is_interrupted(self) -> bool:
        """Whether it ends early because somebody asked for that."""
        return self._containers.stopping or (self._drain.begun and self._lacks_any())

    def _finish_files(self, reason: str) -> None:
        """Store why the run ended early, and complete ``archive.jsonl``.

        Args:
            reason: the reason of an error that ends the run; "" if none does.
        """
        ended = reason or (INTERRUPTED if self._is_interrupted else self._models.used_up)
        if ended and self._lacks_any():
            note_end(self._context.layout.run, ended)
        try:
            self._archive.finish()
        except StorageError as error:
            if not reason:
                raise
            log.warning("archive not finished", error=str(error))  # the first error ends the run

    def _run_all(self) -> None:
        start = self._opened.start
        if start.genid not in self._archive and not self._drain.begun:
            self._submit(GenerationPlan(genid=start.genid, parent=None, commit=start.commit))
            self._collect_all()
        for record in self._archive:
            self._judge_parent(record)  # a kill may have left a mark out
        missing = self._missing()
        while not self._containers.stopping:
            while len(self._pending) < self._options.parallel and self._takes_work:
                number = next(missing, None)
                if number is None:
                    break
                try:
                    self._submit(self._plan(number))
                except RunInterruptedError:
                    break
            if not self._pending:
                return
            self._collect()
        self._containers.close_all()
        self._collect_all()

    @property
    def _takes_work(self) -> bool:
        return not (self._models.used_up or self._drain.begun)

    def _missing(self) -> Iterator[int]:
        numbers = range(1, self._options.max_generation + 1)
        return (number for number in numbers if number not in self._archive)

    def _lacks_any(self) -> bool:
        return (
            self._opened.start.genid not in self._archive or next(self._missing(), None) is not None
        )

    def _plan(self, number: int) -> GenerationPlan:
        begun = Phases(self._context.layout.phases(number)).plan
        if begun is not None and begun.parent is not None and begun.parent in self._archive:
            return attrs.evolve(begun, commit=self._opened.commit_of(begun.parent))
        parent = self._choose_parent(number)
        commit = self._opened.commit_of(parent)
        return GenerationPlan(
            genid=number, parent=parent, commit=commit, archived=len(self._archive)
        )

    def _choose_parent(self, number: int) -> GenId:
        if (evolved := self._evolved) is not None:
            chosen = self._containers.run(lambda: evolved.choose(number))
            if chosen is not None:
                return chosen
        seed = self._options.seed
        assert seed is not None
        seen = self._archive.selection(self._context.layout, generation=number, seed=seed)
        return choose_parent(self._options.parent_selection, self._rule, seen)

    def _ask(self, question: Question) -> Said:
        return self._executor.submit(
            QuestionTask(context=self._context, question=question)
        ).result()

    def _submit(self, plan: GenerationPlan) -> None:
        phases = Phases(self._context.layout.phases(plan.genid))
        if phases.plan != plan:
            phases.begin(plan)
        for view in self._views:
            view.refresh(self._archive)
        log.info("generation started", generation=plan.genid, parent=plan.parent)
        task = GenerationTask(context=self._context, plan=plan)
        self._pending[self._executor.submit(task)] = plan.genid

    def _collect_all(self) -> None:
        while self._pending:
            self._collect()

    def _collect(self) -> None:
        """Wait up to 0.5 s for generations and archive the finished ones."""
        done, _ = wait(self._pending, timeout=POLL_S, return_when=FIRST_COMPLETED)
        if self._containers.stopping:
            self._containers.close_all()
        for future in sorted(done, key=lambda future: str(self._pending[future])):
            del self._pending[future]
            try:
                self._keep(future.result())
            except RunInterruptedError:
                continue

    def _judge_parent(self, record: GenerationRecord) -> None:
        if mark := parent_mark(self._options.valid_parent, self._archive, record):
            log.info("no parent any more", generation=mark.genid, because_of=mark.by)
            mark_generation(self._context, self._archive, mark)

    def _keep(self, record: GenerationRecord) -> None:
        broken = record.failure == "infrastructure"
        self._streak.count(failed=broken)
        if record.parent is None and record.failure == "budget" and self._models.used_up:
            return  # a resume with a larger budget makes it again; all other generations need it
        lost = record.parent is None and record.failure is not None  # a resume makes it again, too
        if not lost:
            self._lock.check()
            finish_generation(self._context, self._archive, record)
            self._made.append(record.genid)
            self._judge_parent(record)
        resume = f"`hyperrun resume {shlex.quote(str(self._context.layout.root))}`"
        if broken and (lost or self._streak.is_over):
            raise RunError(
                f"generation {record.genid} could not be made: {record.detail}; see `hyperrun "
                f"doctor`, then {resume}"
            )
        if lost:
            log_file = self._context.layout.partial(record.genid) / LOG
            raise RunError(
                f"{self._first_failure(record)}; see {str(log_file)!r}; fix the agent and start "
                f"another run, or use {resume} if the cause was not the agent"
            )

    @staticmethod
    def _first_failure(record: GenerationRecord) -> str:
        why = f"{record.failure}: {record.detail}"
        return (
            f"the run cannot continue, because its first generation, {record.genid}, has no "
            f"score ({why})"
        )
