"""The domain seam: what is evolved against. Imports nothing of the project but nothing-at-all values.

A domain runs on the host. Only ``Task.inputs`` ever enters a container; labels, and the code that scores, never do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs


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
    """One part of a domain's tasks.

    Attributes:
        name: ``train``, ``val`` or ``test``.
        staged_samples: how many tasks the first, cheap stage runs; 0 means that there is no first stage.
        staged_threshold: the full stage runs when the staged mean score is above this.
    """

    name: str
    staged_samples: int = 0
    staged_threshold: float = 0.0


class Domain(Protocol):
    """What a domain package provides; loaded by entry point from ``hyperruntime.domains`` and called with no argument.

    Attributes:
        name: the entry point's name.
        description: one line for ``hyperrun domains``.
        splits: the parts, in the order they are evaluated; parents are selected by the last one named ``val``,
            else by ``train``.
        image: name of the recipe in ``containers/`` that its containers run.
        needs_gpu: whether its tasks need a GPU.
        agent: name of the shipped agent template it is made for.
        protected_paths: paths of an agent repository that no patch may change (directories end with ``/``).
        task_timeout_s: seconds one task may take.
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
        """Return the verdict on a prediction; never raises on a malformed or hostile one."""
        ...

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return the JSON summary of a split: at least ``score`` (the mean in [0, 1]) and ``total``."""
        ...

    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401
        """Return an SVG document that shows a prediction, or None where there is nothing to draw."""
        ...
