"""The domain ``circle_packing``: the problem ``math:circles-N`` for several n, in splits, and with
limits of an agent's work.

Verifier and picture are those of the problem. It verifies in this process, which takes at most a
fraction of a second: 32 circles, and numbers of at most 400 digits.

This is a benchmark of AlphaEvolve (Novikov et al. 2025, arXiv:2506.13131, appendix B.12). Agents
train on small n and are validated on n=26 and n=32; n=20 and n=23 are left for the test. The domain
runs on the host; only a task's inputs, which do not hold the best known sums, enter a container.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from hyperdomain_math.circles import ExactCircle, drawn, exact_circles, in_square
from hyperdomain_math.exact import RefusedError
from hyperdomain_math.picture import frame, png
from hyperruntime.domain import DomainBase, Score, Split, Task

__all__ = ["CirclePacking"]

SPLITS = (
    Split(name="train", staged_samples=2, staged_threshold=0.1),
    Split(name="val"),
    Split(name="test"),
)

_LARGEST = 2  # coordinates and radii of what is drawn
_SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"train": (8, 11, 14, 17), "val": (26, 32), "test": (20, 23)}
)
_WORK: Mapping[str, int] = MappingProxyType(
    {"train": 1_200_000, "val": 6_000_000, "test": 6_000_000}
)
_TIME_LIMIT_S: Mapping[str, float] = MappingProxyType({"train": 2.0, "val": 6.0, "test": 6.0})


@attrs.define(kw_only=True)
class CirclePacking(DomainBase):
    """Place n circles in the unit square and maximise the sum of radii.

    Attributes:
        name: the name of the entry point.
        description: one line for ``hyperrun domains``.
        splits: small n for training, n=26 and n=32 for validation, n=20 and n=23 for the test.
        agent: the agent template.
        task_timeout_s: the deadline of one task in seconds, well above the task's own CPU limit.
    """

    name: str = "circle_packing"
    description: str = "n circles in the unit square, largest sum of radii (AlphaEvolve B.12)"
    splits: tuple[Split, ...] = SPLITS
    agent: str = "mutator"
    task_timeout_s: float = 60.0

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the tasks of a split, smallest n first.

        Their input ``work`` limits the number of pair evaluations, so an answer depends on the
        program and the seed but not on the machine's load. ``time_limit_s`` (CPU seconds) is a
        second, higher limit.

        Args:
            split: the name of the split.
            limit: the largest number of tasks; None means all.

        Raises:
            KeyError: the split is unknown.
            ValueError: the limit is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit={limit} is not allowed: a count of tasks, 0 or more")
        limits = {"work": _WORK[split], "time_limit_s": _TIME_LIMIT_S[split]}
        sizes = _SIZES[split][:limit]
        return tuple(
            Task(id=f"n{n:02d}", inputs={"n": n, "seed": 1000 + n, **limits}) for n in sizes
        )

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return the sum of radii divided by the best known one; 0 for an invalid packing.

        As for each problem, a sum that exceeds the best known one by less than its last digit
        scores 1.0.
        """
        n: int = task.inputs["n"]
        problem = in_square(n)
        try:
            total = problem.verify(prediction)
        except RefusedError as error:
            return Score(task_id=task.id, value=0.0, valid=False, detail=str(error), facts={"n": n})
        return Score(
            task_id=task.id,
            value=problem.score(total),
            valid=True,
            detail=f"sum of radii {float(total):.7f}, best known {problem.record}",
            facts={
                "n": n,
                "sum_of_radii": float(total),
                "best_known": float(problem.record),
            },
        )

    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401
        """Return the packing as SVG, even if circles overlap; None if it cannot be drawn."""
        circles = _drawable(task, prediction)
        title = f"n = {len(circles)}: {self.score(task, prediction).detail}"
        return frame(drawn(circles), title) if circles else None

    def picture_png(self, task: Task, prediction: Any) -> bytes | None:  # noqa: ANN401
        """Return the packing as PNG, even if circles overlap; None if it cannot be drawn."""
        circles = _drawable(task, prediction)
        return png([(float(x), float(y), float(r)) for x, y, r in circles]) if circles else None


def _drawable(task: Task, prediction: Any) -> list[ExactCircle]:  # noqa: ANN401
    """Return the circles of an answer; none if it has others than circles near the square."""
    try:
        circles = exact_circles(prediction, task.inputs["n"])
    except RefusedError:
        return []
    near = all(abs(number) <= _LARGEST for circle in circles for number in circle)
    return circles if near else []
