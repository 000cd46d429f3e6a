"""Scores on the host: errors of a domain, and interrupts between tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hyperruntime.domain import DomainBase, Score, Split, Task, Trial, TrialResult
from hyperruntime.loop.evaluation.scoring import Scorer
from hyperruntime.loop.evaluation.task_runner import Prediction
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.failures import (
    GenerationFailedError,
    RunInterruptedError,
    translate_failure,
)
from hyperruntime.loop.workbench.open_containers import OpenContainers
from hyperruntime.spec import ExecResult

TASKS = (Task(id="a", inputs={}), Task(id="b", inputs={}))


class Measured(DomainBase):
    """The answer is a metric."""

    name = "measured"
    description = "for tests"
    splits = (Split(name="train"),)
    agent = "mutator"
    task_timeout_s = 1.0

    def __init__(self, containers: OpenContainers | None = None) -> None:
        """Interrupt the run after the first score, if the containers are given."""
        self.containers = containers
        self.scored: list[str] = []

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return two tasks."""
        return TASKS[:limit]

    def score(self, task: Task, prediction: Any) -> Score:
        """Trust the answer, as a domain must not."""
        self.scored.append(task.id)
        if self.containers is not None:
            self.containers.stop()
        return Score(task_id=task.id, value=1.0, valid=True, metrics={"size": prediction})


class Tried(Measured):
    """The answer names a file of a trial, or is a metric after it."""

    def trial(self, task: Task, prediction: Any) -> Trial:
        """Run the answer."""
        files: Mapping[str, str] = {prediction: ""} if isinstance(prediction, str) else {}
        return Trial(args=("true",), files=files)

    def verdict(self, task: Task, prediction: Any, result: TrialResult) -> Score:
        """Trust the answer here too."""
        return self.score(task, prediction)


def score(domain: DomainBase, folder: Path, containers: Any, *said: Any) -> tuple[Score, ...]:
    """Score one answer for each task."""
    context: Any = SimpleNamespace(
        containers=containers,
        options=GenerateOptions(domains="measured"),
        open_container=lambda *_, **__: SimpleNamespace(
            exec=lambda *_, **__: ExecResult(args=(), exit_code=0), close=lambda: None
        ),
    )
    plan: Any = SimpleNamespace(genid=1)
    answers: Sequence[Prediction] = [
        Prediction(task_id=task.id, value=value) for task, value in zip(TASKS, said, strict=True)
    ]
    return Scorer(context, plan, folder).score(domain, TASKS, answers)


@pytest.fixture
def containers() -> OpenContainers:
    runtime: Any = SimpleNamespace(info=SimpleNamespace(reclaim_args=()))
    return OpenContainers(runtime)


@pytest.mark.parametrize(
    ("domain", "answer"),
    [(Measured(), float("nan")), (Tried(), float("inf")), (Tried(), "../out")],
)
def test_a_spec_error_that_an_answer_causes_fails_its_generation_and_not_the_run(
    tmp_path: Path, containers: OpenContainers, domain: DomainBase, answer: object
) -> None:
    with pytest.raises(GenerationFailedError, match="cannot be scored") as caught:
        score(domain, tmp_path, containers, 1.0, answer)
    failure = translate_failure(caught.value, "evaluate")
    assert (failure.failure, failure.again, failure.ends_run) == ("evaluation", False, False)


def test_an_interrupt_ends_the_scoring_before_the_next_task(
    tmp_path: Path, containers: OpenContainers
) -> None:
    domain = Measured(containers)
    with pytest.raises(RunInterruptedError):
        score(domain, tmp_path, containers, 1.0, 2.0)
    assert domain.scored == ["a"]
