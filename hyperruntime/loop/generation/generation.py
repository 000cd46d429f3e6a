"""Make and evaluate one generation: a visible list of steps.

A generation uses two fresh containers. The first runs the meta agent on a private clone; it is removed before the host
reads its files. The second has a private copy of the new state, so that only the patch is evaluated and no other file
of the meta agent. Why: docs/decisions/0007-generate-loop.md.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import attrs

from hyperruntime.errors import ImageNotFoundError, ReclaimError, SpecError, StorageError, UnsupportedOptionError
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.logs import get_logger
from hyperruntime.loop.evaluation.evaluator import selection_score
from hyperruntime.loop.generation.meta_agent import check_changed, keep_state, run_meta_agent, shorten
from hyperruntime.loop.generation.parent_eligibility import is_valid_parent
from hyperruntime.loop.generation.phases import reached_phases
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.workbench.container import discard
from hyperruntime.loop.workbench.context import GenerationPlan, RunContext
from hyperruntime.loop.workbench.copy_out import copy_files
from hyperruntime.loop.workbench.failures import (
    GenerationFailedError,
    InfrastructureFailedError,
    RunInterruptedError,
    one_line,
    translate_failure,
)
from hyperruntime.loop.workbench.step_log import StepLog
from hyperruntime.storage.atomic import check_writable, make_directory, make_private_directory, sync_tree

log = get_logger(__name__)

ATTEMPTS = 3
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


def make_generation(context: RunContext, plan: GenerationPlan) -> GenerationRecord:
    """Make one generation and return its record; its files are in the run's ``work`` directory.

    After an infrastructure failure the generation is retried, at most twice.

    Args:
        context: context of the run.
        plan: plan of the generation.

    Raises:
        RunInterruptedError: the run is being interrupted.
        StorageError: the host has no space left, or a directory cannot be written.
        UnsupportedOptionError: the engine does not support an option; no generation of this run can be made.
        ImageNotFoundError: the image does not exist; no generation of this run can be made.
        SpecError: a value is invalid; no generation of this run can be made.
    """
    for attempt in range(1, ATTEMPTS):
        record, again = _Generation(context, plan, attempt).make()
        if not again:
            return record
        log.warning("generation made again", generation=plan.genid, attempt=attempt, reason=record.detail)
    return _Generation(context, plan, ATTEMPTS).make()[0]


class _Generation:
    """One attempt at a generation."""

    def __init__(self, context: RunContext, plan: GenerationPlan, attempt: int) -> None:
        """Make the directories; start nothing."""
        self._context, self._plan = context, plan
        self._folder = context.layout.partial(plan.genid)
        self._private = self._folder.with_name(f"{self._folder.name}.private")
        self._phases = reached_phases(context, plan)
        if self._phases.record is None:
            remove_tree(self._folder)
        discard(context, self._private)
        make_private_directory(self._private)
        make_directory(self._folder)
        context.models.begin(plan.genid)
        self._steps = StepLog(plan.genid, context.events, self._folder)
        open_adapter = context.adapter.open_generation
        self._adapter = open_adapter(context, plan, self._private, self._folder, self._steps, self._phases)
        self._agent, self._trial = self._adapter.agent, self._adapter.trial
        begun = GenerationRecord(
            genid=plan.genid,
            parent=plan.parent,
            commit=plan.commit,
            started=datetime.now(UTC).isoformat(timespec="milliseconds"),
            archived=plan.archived,
        )
        self._record = attrs.evolve(self._phases.record or begun, attempts=attempt)
        self._steps.durations.update(self._record.durations)

    def make(self) -> tuple[GenerationRecord, bool]:
        """Run all steps; return the record, and whether another attempt may help."""
        started, again = time.monotonic(), False
        with self._steps:
            try:
                self._run_steps()
                self._record = attrs.evolve(self._record, valid_parent=True)
            except _ENDS_THE_RUN:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary of a generation: every error is recorded
                again = self._fail(error)
            finally:
                self._clean_up()
            if again:
                check_writable(self._folder)  # after _clean_up: the agent may have filled the disk
            self._settle_record()
            if not again or self._record.attempts == ATTEMPTS:
                self._steps.settled(self._record.score, self._record.failure or "", started)
        return self._record, again

    def _run_steps(self) -> None:
        run = self._steps.run
        run("image", self._use_image)
        if self._phases.record is not None:
            self._steps.note("== the state exists already; continue with its evaluation")
        elif self._plan.parent is not None:
            run("start", self._agent.start)
            run("parent", self._bring_in_parent)
            run("meta agent", self._run_meta_agent)
            run("settle", self._settle_agent)
            run("diff", self._take_diff)
        run("state", self._bring_in_state)
        run("load check", self._check_load)
        run("evaluate", self._evaluate)
        run("copy out", self._copy_out)

    def _use_image(self) -> None:
        """Log the image: the run ensured it once, and starting a container fails if it is missing."""
        self._steps.note(f"image {self._context.image}")

    def _bring_in_parent(self) -> None:
        self._context.store.checkout(self._plan.commit, self._agent.repo)

    def _run_meta_agent(self) -> None:
        run_meta_agent(self._context, self._adapter, self._steps)

    def _settle_agent(self) -> None:
        """End the meta agent's container and reclaim its files; the next container starts in parallel."""
        self._trial.start_early()
        self._agent.close()
        self._agent.settle()

    def _take_diff(self) -> None:
        snapshot = keep_state(self._context, self._plan, self._agent, self._folder)
        self._record = attrs.evolve(self._record, commit=snapshot.commit, dropped=shorten(snapshot.dropped))
        for path, reason in self._record.dropped:
            self._steps.note(f"left out of the diff: {path}: {reason}")
        check_changed(snapshot)
        copy_files(self._agent.out, self._folder / AGENT_OUTPUT, keep=True)
        sync_tree(self._folder)
        durations = {**self._steps.durations, "diff": 0.0}  # shows that the step ended; its duration is not known yet
        self._phases.keep_state(attrs.evolve(self._record, durations=durations))

    def _bring_in_state(self) -> None:
        self._adapter.bring_in(self._record.commit)
        self._trial.start()

    def _check_load(self) -> None:
        self._adapter.check_load()

    def _evaluate(self) -> None:
        staged_only = self._adapter.evaluate()
        self._record = attrs.evolve(self._record, staged_only=staged_only)

    def _copy_out(self) -> None:
        self._adapter.write_results(self._folder)

    def _fail(self, error: Exception) -> bool:
        """Record why the generation failed; return whether another attempt may help."""
        if self._context.containers.stopping:
            raise RunInterruptedError("the run is being interrupted") from error
        reason = translate_failure(error, self._steps.current)
        self._steps.note(f"== failed: {reason.failure}: {reason}")
        self._record = attrs.evolve(self._record, failure=reason.failure, detail=one_line(str(reason)))
        return isinstance(reason, InfrastructureFailedError)

    def _clean_up(self) -> None:
        """Remove the containers and the private directories; copy the meta agent's outputs first."""
        try:
            self._steps.run("remove", self._end_containers)
            if self._plan.parent is not None:
                self._settle_once()
                copy_files(self._agent.out, self._folder / AGENT_OUTPUT, keep=True)
        except (StorageError, ReclaimError, GenerationFailedError) as error:
            self._steps.note(f"the agent's files were not kept: {error}")
        finally:
            self._steps.run("reset", lambda: discard(self._context, self._private))

    def _settle_once(self) -> None:
        """Settle the agent's files, unless the step was tried already."""
        if "settle" not in self._steps.durations:
            self._agent.settle()

    def _end_containers(self) -> None:
        try:
            self._agent.close()
        finally:
            self._trial.close()

    def _settle_record(self) -> None:
        results = self._adapter.results
        scores = {
            domain: {split: result.weighted for split, result in splits.items()} for domain, splits in results.items()
        }
        score = selection_score(self._context.domains, results) if self._record.valid_parent else None
        self._record = attrs.evolve(
            self._record,
            scores=scores,
            score=score,
            valid_parent=is_valid_parent(self._context.options.valid_parent, failure=self._record.failure, score=score),
            durations=dict(self._steps.durations),
            usage=self._context.models.usage(self._plan.genid),
        )
