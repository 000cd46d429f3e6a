"""The domain seam: what is evolved against.

A domain runs on the host. Only ``Task.inputs`` ever enters a container; labels, and the code that scores, never do.
A class with the members of ``Domain`` is enough. One that must see an answer run is a ``TriedDomain`` too, one whose
tasks go back and forth a ``DialogueDomain``. Why: docs/decisions/0016-domains.md; how: docs/writing-a-domain.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs

SPLITS = ("train", "val", "test")


@attrs.frozen(kw_only=True)
class Task:
    """One problem as the agent sees it: no label.

    Attributes:
        id: unique within domain and split; letters, digits, ``-``, ``_`` and ``.``.
        inputs: JSON values handed to ``TaskAgent.forward``.
    """

    id: str
    inputs: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Score:
    """The verdict on one prediction.

    Attributes:
        task_id: the task that was answered.
        value: in [0, 1] unless the domain says otherwise (a new record may exceed 1); 0.0 for an invalid answer.
        valid: whether the prediction was well formed and feasible.
        detail: one sentence for people (why it is invalid, or the raw figure).
        facts: raw figures for reports, JSON values.
    """

    task_id: str
    value: float
    valid: bool
    detail: str = ""
    facts: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Split:
    """One part of a domain's tasks; each domain has ``train``.

    Attributes:
        name: one of ``SPLITS``.
        staged_samples: how many tasks the first, cheap stage runs; 0 means that there is no first stage.
        staged_threshold: the full stage runs when the staged mean score is above this.
        staged_inclusive: whether a staged mean score that is exactly at the threshold is enough.
    """

    name: str = attrs.field(validator=attrs.validators.in_(SPLITS))
    staged_samples: int = attrs.field(default=0, validator=(attrs.validators.instance_of(int), attrs.validators.ge(0)))
    staged_threshold: float = attrs.field(default=0.0, validator=attrs.validators.instance_of((int, float)))
    staged_inclusive: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))

    def is_passed(self, staged_mean: float) -> bool:
        """Return whether the full stage runs after a first stage with this mean score."""
        return staged_mean > self.staged_threshold or (self.staged_inclusive and staged_mean == self.staged_threshold)


@attrs.frozen(kw_only=True)
class Trial:
    """A command to be run on an answer, in a fresh container that is thrown away afterwards; values only.

    Whatever the command prints, and its exit code, is the word of a process that the answer may have written: a domain
    compares it with what it knows, and keeps what decides on the host.

    Attributes:
        args: argv; runs in a directory that holds ``files``.
        files: contents by relative path; ``/`` makes folders.
        input: what the command reads.
        timeout_s: seconds it may take.
    """

    args: tuple[str, ...]
    files: Mapping[str, str | bytes] = attrs.field(factory=dict)
    input: bytes = b""
    timeout_s: float = 60.0


@attrs.frozen(kw_only=True)
class TrialResult:
    """How a trial ended; none of it is to be trusted.

    Attributes:
        exit_code: of the command.
        stdout: what it printed, head and tail where that was much.
        stderr: the same of the other stream.
        timed_out: whether it was ended at its deadline.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


class Dialogue(Protocol):
    """One task in progress: it lives on the host, and the agent in a container is told what it needs to go on."""

    def begin(self) -> Mapping[str, Any]:
        """Return the inputs of the agent's first turn: JSON values."""
        ...

    def reply(self, prediction: Any) -> Mapping[str, Any] | None:  # noqa: ANN401 - any JSON value
        """Return the inputs of the next turn, or None when the task is over; never raises on a hostile prediction."""
        ...

    def outcome(self, problem: str | None) -> Any:  # noqa: ANN401 - any JSON value
        """Return what is scored and kept as the task's prediction; asked once, at the end.

        Args:
            problem: why the agent did not go on; None where the task came to its own end.
        """
        ...

    def close(self) -> None:
        """Let go of what the task held."""
        ...


class Domain(Protocol):
    """What a domain package provides; loaded by entry point from ``hyperruntime.domains``.

    It is called with no argument, or, where a user writes ``NAME:ARGUMENT``, with that one text.

    Attributes:
        name: the entry point's name, or what the argument makes of it; letters, digits, ``-``, ``_`` and ``.``.
        description: one line for ``hyperrun domains``.
        splits: the parts, in the order they are evaluated; parents are selected by the last one named ``val``,
            else by ``train``.
        image: name of the recipe in ``containers/`` that its containers run.
        needs_gpu: whether its tasks need a GPU.
        agent: name of the shipped agent template it is made for.
        protected_paths: paths of an agent repository that no patch may change (directories end with ``/``).
        task_timeout_s: seconds one task may take, all its turns together.

    A domain may also say ``container_per_task = True``: each task is then asked in a fresh container; and
    ``parallel_tasks = True``, where agents mostly wait, for a model or a world: ``--eval-workers`` tasks are then asked
    at once, and dialogues are called from several threads.
    """

    name: str
    description: str
    splits: tuple[Split, ...]
    image: str
    needs_gpu: bool
    agent: str
    protected_paths: tuple[str, ...]
    task_timeout_s: float

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the tasks of a split, always in the same order; at most ``limit`` of them.

        Raises:
            KeyError: no split has this name.
        """
        ...

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return the verdict on a prediction; never raises on a malformed or hostile one.

        A task that ended without an answer is asked with None, for the sake of ``facts``; it counts as invalid, and 0.
        """
        ...

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return the JSON summary of a split: at least ``score`` (the mean in [0, 1]) and ``total``."""
        ...

    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401
        """Return an SVG document that shows a prediction, or None where there is nothing to draw."""
        ...


@runtime_checkable
class TriedDomain(Protocol):
    """A domain whose answers are run before they are judged; ``score`` is then not asked."""

    def trial(self, task: Task, prediction: Any) -> Trial | Score:  # noqa: ANN401
        """Return what is to be run, or the verdict where nothing is; never raises on a malformed prediction."""
        ...

    def verdict(self, task: Task, prediction: Any, result: TrialResult) -> Score:  # noqa: ANN401
        """Return the verdict on what was run; never raises on a hostile result."""
        ...


@runtime_checkable
class DialogueDomain(Protocol):
    """A domain whose tasks take more than one turn; ``score`` is asked with the dialogue's outcome."""

    def dialogue(self, task: Task) -> Dialogue:
        """Return a task that is about to begin."""
        ...


def mean_report(domain: str, split: str, scores: Sequence[Score]) -> dict[str, Any]:
    """Return the plain report of a split: the mean, the counts, and every task's own figures."""
    return {
        "domain": domain,
        "split": split,
        "score": math.fsum(min(1.0, score.value) for score in scores) / len(scores) if scores else 0.0,
        "total": len(scores),
        "valid": sum(score.valid for score in scores),
        "tasks": {
            score.task_id: {"score": score.value, "valid": score.valid, "detail": score.detail, **score.facts}
            for score in scores
        },
    }
