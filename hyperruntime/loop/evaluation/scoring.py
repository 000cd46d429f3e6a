"""Score predictions: on the host, or after a trial in a fresh container.

A trial's container gets only the files of the trial: no network, no label, no file of another task.
It is removed before the domain gives its verdict.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.domain import DomainBase, Score, Task, Trial, TrialResult, TriedDomain
from hyperruntime.errors import ContainerLostError, HyperRuntimeError, SpecError
from hyperruntime.logs import get_logger
from hyperruntime.loop.evaluation.task_runner import Prediction
from hyperruntime.loop.workbench.container import GenerationPlan, StepContext
from hyperruntime.loop.workbench.failures import blaming_answer
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import make_directory, write_file

log = get_logger(__name__)

_LOST = TrialResult(exit_code=137, stdout=b"", stderr=b"")
_GIVEN = "/workspace/given"
_RUN = f'here=$(mktemp -d) && cp -R {_GIVEN}/. "$here" && cd "$here" && exec "$@"'


class Scorer:
    """Scores answers with their domain, and runs the trials that the domain requests first."""

    def __init__(self, context: StepContext, plan: GenerationPlan, folder: Path) -> None:
        """Store the files of trials below ``folder``, a host directory that no container can write
        to.
        """
        self._context = context
        self._plan = plan
        self._folder = folder
        self._trials = count(1)

    def score(
        self, domain: DomainBase, tasks: Sequence[Task], predictions: Sequence[Prediction]
    ) -> tuple[Score, ...]:
        """Return the scores, in the order of the tasks.

        Args:
            domain: the domain of the tasks.
            tasks: the tasks.
            predictions: one answer per task, in the same order.

        Raises:
            RunInterruptedError: the run is being interrupted.
            GenerationFailedError: the domain raised a SpecError.
            HyperRuntimeError: a trial's container cannot be started.
        """
        # None: only facts count
        values = [None if said.error is not None else said.value for said in predictions]
        if isinstance(domain, TriedDomain):
            found = self._tried(domain, tasks, values)
        else:
            found = tuple(
                self._score(domain, task, value) for task, value in zip(tasks, values, strict=True)
            )
        return tuple(
            score
            if said.error is None
            else attrs.evolve(score, value=0.0, valid=False, detail=said.error)
            for score, said in zip(found, predictions, strict=True)
        )

    def _score(self, domain: DomainBase, task: Task, value: Any) -> Score:  # noqa: ANN401 - any JSON value
        self._context.containers.check_running()  # a score may take minutes, if models grade
        with blaming_answer(task.id):
            return domain.score(task, value)

    def _tried(
        self, domain: TriedDomain, tasks: Sequence[Task], values: Sequence[Any]
    ) -> tuple[Score, ...]:
        """Run the trials in parallel, at most one per CPU, and then get the verdicts one by one."""
        wanted = [
            _first_trial(domain, task, value) for task, value in zip(tasks, values, strict=True)
        ]
        workers = min(self._context.options.eval_workers, len(os.sched_getaffinity(0)))
        trials = [trial for trial in wanted if isinstance(trial, Trial)]
        ended = parallel_map(workers, self._try, trials)
        alone = (
            result or self._try_alone(trial) for trial, result in zip(trials, ended, strict=True)
        )
        return tuple(
            known if isinstance(known, Score) else _verdict(domain, task, value, next(alone))
            for task, value, known in zip(tasks, values, wanted, strict=True)
        )

    def _try(self, trial: Trial) -> TrialResult | Score | None:
        """Return the result of a trial and of those that follow it; None if the machine or a
        parallel trial may have made it fail.
        """
        try:
            return self._run_all(trial)
        except HyperRuntimeError as error:
            if self._context.containers.stopping:
                raise
            log.info("trial to be run again", generation=self._plan.genid, reason=str(error))
            return None

    def _try_alone(self, trial: Trial) -> TrialResult | Score | None:
        """Return the result of a trial that runs alone; None if a container was lost."""
        try:
            return self._run_all(trial)
        except ContainerLostError:
            if self._context.containers.stopping:
                raise
            return None

    def _run_all(self, trial: Trial) -> TrialResult | Score:
        """Run a trial and those that follow it, each in its own container."""
        while True:
            result = self._run(trial)
            with blaming_answer():
                following = result if trial.then is None else trial.then(result)
            if not isinstance(following, Trial):
                return following
            trial = following

    def _run(self, trial: Trial) -> TrialResult:
        folder = make_directory(self._folder / f"trial_{next(self._trials)}")
        for name, content in trial.files.items():
            with blaming_answer():
                path = folder / _inside(name)
            write_file(path, content.encode() if isinstance(content, str) else content)
        given = Mount(source=str(folder), target=_GIVEN)
        container = self._context.open_container(
            self._plan.genid, given, isolated=True, gpu=trial.gpu
        )
        try:
            result = container.exec(
                ["/bin/sh", "-c", _RUN, "trial", *trial.args],
                workdir="/",
                input=trial.input,
                timeout_s=trial.timeout_s,
                output_limit_bytes=trial.output_limit_bytes,
            )
            self._context.containers.check_ended(result)
        finally:
            self._context.containers.close(container)
        return TrialResult(
            exit_code=result.exit_code,
            stdout=result.stdout,
            stderr=result.stderr,
            timed_out=result.timed_out,
        )


def _first_trial(domain: TriedDomain, task: Task, value: Any) -> Trial | Score:  # noqa: ANN401 - any JSON value
    with blaming_answer(task.id):
        return domain.trial(task, value)


def _verdict(
    domain: TriedDomain,
    task: Task,
    value: Any,  # noqa: ANN401 - any JSON value
    result: TrialResult | Score | None,
) -> Score:
    if isinstance(result, Score):
        return result
    with blaming_answer(task.id):
        known = domain.verdict(task, value, result or _LOST)  # of a lost one, to get the facts
    if result is not None:
        return known
    return attrs.evolve(
        known, value=0.0, valid=False, detail="the container ended while the answer ran in it"
    )


def _inside(name: str) -> PurePosixPath:
    """Return a checked path of a trial's file; the name may come from an agent."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise SpecError("files", name, "a relative path below the trial's directory")
    return path
