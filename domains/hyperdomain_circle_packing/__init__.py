"""The domain ``circle_packing``: pack n circles into the unit square and maximise the sum of their radii.

This is a benchmark of AlphaEvolve (Novikov et al. 2025, arXiv:2506.13131, appendix B.12). Agents train on small n and
are validated on n=26 and n=32. The domain runs on the host; only a task's inputs enter a container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from hyperdomain_circle_packing.picture import svg
from hyperdomain_circle_packing.png import png
from hyperdomain_circle_packing.score import parse_circles, score_packing
from hyperdomain_circle_packing.tasks import SPLITS, tasks_of
from hyperruntime.domain import Domain, Score, Split, Task, mean_report

__all__ = ["CirclePacking"]


@attrs.define(kw_only=True)
class CirclePacking:
    """Place n circles in the unit square and maximise the sum of radii.

    Attributes:
        name: the name of the entry point.
        description: one line for ``hyperrun domains``.
        splits: small n for training, n=26 and n=32 for validation.
        image: the image recipe of the containers.
        needs_gpu: always False.
        agent: the agent template.
        protected_paths: the contract file, and the usual directory of harness files.
        task_timeout_s: the deadline of one task in seconds, well above the task's own CPU limit.
    """

    name: str = "circle_packing"
    description: str = "n circles in the unit square, largest sum of radii (AlphaEvolve B.12)"
    splits: tuple[Split, ...] = SPLITS
    image: str = "base"
    needs_gpu: bool = False
    agent: str = "mutator"
    protected_paths: tuple[str, ...] = ("hyperrun.toml", "domains/")
    task_timeout_s: float = 60.0

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the tasks of a split, smallest n first.

        Args:
            split: the name of the split.
            limit: the largest number of tasks; None means all.

        Raises:
            KeyError: the split is unknown.
            ValueError: the limit is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit={limit} is not allowed: a count of tasks, 0 or more")
        return tasks_of(split)[:limit]

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return the sum of radii divided by the best known one; 0 for an invalid packing."""
        return score_packing(task, prediction)

    def report(self, split: str, scores: Sequence[Score]) -> Mapping[str, Any]:
        """Return the summary of a split; a new record counts as 1 in ``score`` and with its full value in ``tasks``."""
        return mean_report(self.name, split, scores)

    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401
        """Return the packing as SVG, even if it is invalid; None if the answer has no circles."""
        circles, _ = parse_circles(prediction, task.inputs["n"])
        return svg(circles, f"n = {len(circles)}: {self.score(task, prediction).detail}") if circles else None

    def picture_png(self, task: Task, prediction: Any) -> bytes | None:  # noqa: ANN401
        """Return the packing as PNG, even if it is invalid; None if the answer has no circles."""
        circles, _ = parse_circles(prediction, task.inputs["n"])
        return png(circles) if circles else None


if TYPE_CHECKING:
    _conforms: type[Domain] = CirclePacking
