"""Make and evaluate one generation: a visible list of steps.

A generation uses two fresh containers. The first runs the meta agent on a private clone; it is
removed before the host reads its files. The second has a private copy of the new state, so that
only the patch is evaluated and no other file of the meta agent. Why:
docs/design/loop.md#a-generation.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import attrs

from hyperruntime.errors import (
    ImageNotFoundError,
    PatchError,
    ReclaimError,
    SpecError,
    StorageError,
    StorageFullError,
    UnsupportedOptionError,
)
from hyperruntime.git.patch import Notes
from hyperruntime.git.store import Snapshot
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.logs import get_logger
from hyperruntime.loop.evaluation.evaluator import (
    Results,
    selection_score,
    split_metrics,
    unanswered,
)
from hyperruntime.loop.generation.adapter import Attempt, RunContext
from hyperruntime.loop.generation.phases import reached_phases
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, PATCH
from hyperruntime.loop.run_files.record import TASKS, GenerationRecord
from hyperruntime.loop.workbench.container import (
    PATCH_LIMIT,
    GenerationPlan,
    copy_files,
    discard,
    protected_paths,
    read_file,
)
from hyperruntime.loop.workbench.events import StepLog
from hyperruntime.loop.workbench.failures import (
    GenerationFailedError,
    RunInterruptedError,
    translate_failure,
)
from hyperruntime.runs.retry import ATTEMPTS
from hyperruntime.storage.atomic import (
    check_writable,
    make_directory,
    make_private_directory,
    sync_tree,
    write_file,
)
from hyperruntime.units import one_line

log = get_logger(__name__)

_BINARY_MARK = b"\nBinary files "
_NAMED = 5
_MAX_DROPPED = 200
STEPS = (
    "image", "start", "parent", "meta agent", "settle", "diff", "state", "load check", "evaluate", "copy out",
    "remove", "reset",
)  # fmt: skip
_ENDS_THE_RUN = (
    RunInterruptedError,
    UnsupportedOptionError,
    ImageNotFoundError,
    SpecError,
)


def make_generation(context: RunContext, plan: GenerationPlan, first: int = 1) -> GenerationRecord:
    """Make one generation and return its record; the parameters and errors are those of
    :func:`make_with_results`.
    """
    return make_with_results(context, plan, first)[0]


def make_with_results(
    context: RunContext, plan: GenerationPlan, first: int = 1
) -> tuple[GenerationRecord, Results]:
    """Make one generation; return its record and its results. Its files are in the run's ``work``
    directory.

    After an infrastructure failure the generation is retried, at most twice.

    Args:
        context: context of the run.
        plan: plan of the generation.
        first: number of the first attempt; more than 1 if attempts on other machines were lost.

    Raises:
        RunInterruptedError: the run is being interrupted.
        StorageError: the host has no space left, or a directory cannot be written.
        UnsupportedOptionError: the engine does not support an option; no generation of this run can
            be made.
        ImageNotFoundError: the image does not exist; no generation of this run can be made.
        SpecError: a value is invalid; no generation of this run can be made.
    """
    number = first
    last = first + ATTEMPTS - 1
    while (attempt := _Generation(context, plan, number, last)).make() and number < last:
        log.warning(
            "generation made again",
            generation=plan.genid,
            attempt=number,
            reason=attempt.record.detail,
        )
        number += 1
    return attempt.record, attempt.adapter.results


class _Generation:
    """One attempt at a generation.

    Attributes:
        record: the record so far.
        adapter: the steps that depend on the agent's contract.
    """

    def __init__(self, context: RunContext, plan: GenerationPlan, number: int, last: int) -> None:
        """Make the directories; start nothing."""
        self._context = context
        self._plan = plan
        self._last = last
        self._folder = context.layout.partial(plan.genid)
        self._output = self._folder / AGENT_OUTPUT
        self._private = self._folder.with_name(f"{self._folder.name}.private")
        self._phases = reached_phases(context, plan)
        self._ends_run = False
        if self._phases.record is None:
            remove_tree(self._folder)
        discard(context, self._private)
        make_private_directory(self._private)
        make_directory(self._folder)
        context.models.begin(plan.genid)
        self._steps = StepLog(plan.genid, context.events, self._folder)
        attempt = Attempt(
            context=context,
            plan=plan,
            private=self._private,
            folder=self._folder,
            steps=self._steps,
            phases=self._phases,
        )
        self.adapter = context.adapter.open_generation(attempt)
        begun = GenerationRecord(
            genid=plan.genid,
            parent=plan.parent,
            commit=plan.commit,
            started=datetime.now(UTC).isoformat(timespec="milliseconds"),
            archived=plan.archived,
        )
        settings = context.options.score_settings
        self.record = attrs.evolve(self._phases.record or begun, attempts=number, settings=settings)
        self._steps.durations.update(self.record.durations)

    def make(self) -> bool:
        """Run all steps; return whether another attempt may help."""
        started = time.monotonic()
        again = False
        with self._steps:
            try:
                self._run_steps()
                self.record = attrs.evolve(self.record, valid_parent=True)
            except _ENDS_THE_RUN:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary of a generation: every error is recorded
                again = self._fail(error)
            finally:
                self._clean_up()
            if again:
                check_writable(self._folder)  # after _clean_up: the agent may have filled the disk
            if self._ends_run and self.record.attempts == self._last:
                raise StorageFullError(
                    f"generation {self._plan.genid} was not made: {self.record.detail}; free "
                    "some space"
                )
            self._complete_record()
            if not again or self.record.attempts == self._last:
                self._steps.finished(self.record.score, self.record.failure or "", started)
        return again

    def _run_steps(self) -> None:
        run = self._steps.run
        adapter = self.adapter
        commit = self._plan.commit
        # a container without it does not start
        run("image", lambda: self._steps.note(f"image {self._context.image}"))
        if self._phases.record is not None:
            self._steps.note("== the state exists already; continue with its evaluation")
        elif self._plan.parent is not None:
            run("start", adapter.agent.start)
            run("parent", lambda: self._context.store.checkout(commit, adapter.agent.repo))
            run("meta agent", self._run_meta_agent)
            run("settle", self._end_agent)
            run("diff", self._take_diff)
        run("state", self._bring_in_state)
        run("load check", adapter.check_load)
        run("evaluate", self._evaluate)
        run("copy out", adapter.write_results)
        if self._plan.parent is None and not self._plan.split:
            self._check_answers()

    def _run_meta_agent(self) -> None:
        args = self.adapter.meta_agent_args()
        timeout_s = self._context.options.timeout_meta_s
        self.adapter.agent.run(args, "the meta agent", timeout_s, self._steps.write, "agent")

    def _end_agent(self) -> None:
        """End the meta agent's container and reclaim its files; the next container starts in
        parallel.
        """
        self.adapter.trial.start_early()
        self.adapter.agent.close()
        self.adapter.agent.reclaim_files()

    def _take_diff(self) -> None:
        """Store the changed state, and its diff; refuse a state that equals the parent's."""
        try:
            snapshot = self._read_diff()
        except PatchError as error:
            named = "".join(f"; {path!r}: {reason}" for path, reason in error.refused[:_NAMED])
            raise GenerationFailedError("refused-patch", f"{error}{named}") from error
        write_file(self._output / PATCH, snapshot.patch)
        self.record = attrs.evolve(
            self.record, commit=snapshot.commit, dropped=_shorten(snapshot.dropped)
        )
        for path, reason in self.record.dropped:
            self._steps.note(f"left out of the diff: {path}: {reason}")
        if not snapshot.patch:
            dropped = (
                f"; all {len(snapshot.dropped)} changes were left out" if snapshot.dropped else ""
            )
            raise GenerationFailedError("empty-diff", f"the meta agent changed nothing{dropped}")
        copy_files(self.adapter.agent.out, self._output, keep=True)
        sync_tree(self._folder)
        # shows that the step ended; its duration is not known yet
        durations = {**self._steps.durations, "diff": 0.0}
        self._phases.keep_state(attrs.evolve(self.record, durations=durations))

    def _read_diff(self) -> Snapshot:
        """Return the state that the agent's diff makes, or its whole tree if it wrote no diff."""
        context = self._context
        plan = self._plan
        agent = self.adapter.agent
        rules = context.options.change_rules(protected_paths(context.domains))
        patch = read_file(agent.out, PATCH.encode(), PATCH_LIMIT)
        if patch is not None:
            try:
                fuzz = context.adapter.patch_fuzz
                return context.store.apply_patch(plan.commit, patch, plan.genid, rules, fuzz=fuzz)
            except PatchError as error:
                # A diff made without --binary names binary files but does not contain them.
                if error.refused or _BINARY_MARK not in b"\n" + patch:
                    write_file(self._output / f"refused_{PATCH}", patch)
                    raise
        return context.store.snapshot(plan.commit, agent.repo, plan.genid, rules)

    def _bring_in_state(self) -> None:
        self.adapter.bring_in(self.record.commit)
        self.adapter.trial.start()

    def _evaluate(self) -> None:
        self.record = attrs.evolve(self.record, staged_only=self.adapter.evaluate())

    def _check_answers(self) -> None:
        """Fail if no task has an answer: a run must not be built on an agent that only fails."""
        splits = [result for splits in self.adapter.results.values() for result in splits.values()]
        said = [one for result in splits for one in result.predictions]
        if said and all(one.value is None for one in said):
            why = next((one.error for one in said if one.error), "it gave no reason")
            raise GenerationFailedError(
                "evaluation", f"the agent answered none of {len(said)} tasks: {why}"
            )

    def _fail(self, error: Exception) -> bool:
        """Record why the generation failed; return whether another attempt may help."""
        if self._context.containers.stopping:
            raise RunInterruptedError("the run is being interrupted") from error
        reason = translate_failure(error, self._steps.current)
        self._steps.note(f"== failed: {reason.failure}: {reason}")
        self.record = attrs.evolve(
            self.record, failure=reason.failure, detail=one_line(str(reason))
        )
        self._ends_run = reason.ends_run
        return reason.again

    def _clean_up(self) -> None:
        """Remove the containers and the private directories; copy the meta agent's outputs
        first.
        """
        try:
            self._steps.run("remove", self._end_containers)
            if self._plan.parent is not None:
                if "settle" not in self._steps.durations:  # the step was not tried yet
                    self.adapter.agent.reclaim_files()
                copy_files(self.adapter.agent.out, self._output, keep=True)
        except (StorageError, ReclaimError, GenerationFailedError) as error:
            self._steps.note(f"the agent's files were not kept: {error}")
        finally:
            self._steps.run("reset", lambda: discard(self._context, self._private))

    def _unanswered(self) -> str:
        """Return how many tasks have no answer; report it, because only the score would show it."""
        if not (found := unanswered(self.adapter.results)):
            return ""
        text = one_line(found)
        if self.record.failure is None:
            self._steps.failed(TASKS, text)
        return text

    def _end_containers(self) -> None:
        try:
            self.adapter.agent.close()
        finally:
            self.adapter.trial.close()

    def _complete_record(self) -> None:
        results = self.adapter.results
        scores = {
            domain: {split: result.weighted for split, result in splits.items()}
            for domain, splits in results.items()
        }
        score = (
            selection_score(self._context.domains, results) if self.record.valid_parent else None
        )
        self.record = attrs.evolve(
            self.record,
            scores=scores,
            metrics=split_metrics(results),
            score=score,
            ensemble_failure=self.adapter.ensemble_failure,
            unanswered=self._unanswered(),
            valid_parent=is_valid_parent(
                self._context.options.valid_parent, failure=self.record.failure, score=score
            ),
            durations=dict(self._steps.durations),
            usage=self._context.models.usage(self._plan.genid),
        )


def is_valid_parent(rule: str, *, failure: str | None, score: float | None) -> bool:
    """Return whether a new generation may become a parent.

    ``strict``: a generation with a score may always become a parent. ``hyperagents``: a generation
    without a failure may become a parent until the meta agent of one of its children fails.

    Args:
        rule: one of ``VALID_PARENT_RULES``.
        failure: class of its failure, or None.
        score: its score, or None.
    """
    return failure is None and (rule == "hyperagents" or score is not None)


def _shorten(dropped: Notes) -> Notes:
    """Return the first 200 omitted changes, and an entry with the number of the others."""
    if len(dropped) <= _MAX_DROPPED:
        return dropped
    return (
        *dropped[:_MAX_DROPPED],
        ("...", f"{len(dropped) - _MAX_DROPPED} more changes were left out"),
    )
