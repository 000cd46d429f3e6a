"""The domain ``circle_packing``: pack n circles into the unit square and maximise the sum of their
radii.

This is a benchmark of AlphaEvolve (Novikov et al. 2025, arXiv:2506.13131, appendix B.12). Agents
train on small n and are validated on n=26 and n=32; n=20 and n=23 are left for the test. The domain
runs on the host; only a task's inputs, which do not hold the best known sums, enter a container.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from hyperdomain_circle_packing.picture import png, svg
from hyperdomain_circle_packing.score import first_violation, parse_circles
from hyperruntime.domain import DomainBase, Score, Split, Task

__all__ = ["CirclePacking"]

BEST_KNOWN: Mapping[int, float] = MappingProxyType(
    {
        1: 0.5,
        2: 2 - math.sqrt(2),
        8: 1.4238140,
        11: 1.6800584,
        14: 1.9056673,
        17: 2.1111854,
        20: 2.3011229,
        23: 2.470,
        26: 2.635983,
        32: 2.939572,
    }
)
"""Best known sum of radii of ``n`` disjoint circles in the unit square.

Source: Erich Friedman, Packing Center, "Circles in Squares" by sum of radii
(https://erich-friedman.github.io/packing/cirRsqu/). n=1 and n=2 are exact. For 8 <= n <= 17 the
page gives three decimals ("1.423+"); the other digits are from our own search, sequential quadratic
programming from 700 to 12,000 starts each, rounded up. n=20: the same search, which the page does
not list. n=23: an earlier search, known to three decimals only, see ``TRUNCATED``. n=26: 2.635 by
AlphaEvolve (Novikov et al. 2025, arXiv:2506.13131, appendix B.12), now listed as "2.63598+". n=32:
2.937 by AlphaEvolve, now 2.939572 (Georgiev, Gomez-Serrano, Tao, Wagner 2025, arXiv:2511.02864),
listed as "2.939+".
"""

TRUNCATED = frozenset({23})
"""The ``n`` whose best known sum is known to three decimals only; its best packings score up to
1.0005.
"""

SPLITS = (
    Split(name="train", staged_samples=2, staged_threshold=0.1),
    Split(name="val"),
    Split(name="test"),
)

_ROUNDED = " (to three decimals: a sum above it may be no record)"
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
        """Return the sum of radii divided by the best known one; 0 for an invalid packing."""
        n: int = task.inputs["n"]
        circles, problem = parse_circles(prediction, n)
        problem = problem or first_violation(circles)
        if problem:
            return Score(task_id=task.id, value=0.0, valid=False, detail=problem, facts={"n": n})
        total = math.fsum(r for _, _, r in circles)
        best = BEST_KNOWN[n]
        return Score(
            task_id=task.id,
            value=total / best,
            valid=True,
            detail=f"sum of radii {total:.7f}, best known "
            f"{best:.7f}{_ROUNDED if n in TRUNCATED else ''}",
            facts={"n": n, "sum_of_radii": total, "best_known": best},
        )

    def picture(self, task: Task, prediction: Any) -> str | None:  # noqa: ANN401
        """Return the packing as SVG, even if it is invalid; None if the answer has no circles."""
        circles, _ = parse_circles(prediction, task.inputs["n"])
        return (
            svg(circles, f"n = {len(circles)}: {self.score(task, prediction).detail}")
            if circles
            else None
        )

    def picture_png(self, task: Task, prediction: Any) -> bytes | None:  # noqa: ANN401
        """Return the packing as PNG, even if it is invalid; None if the answer has no circles."""
        circles, _ = parse_circles(prediction, task.inputs["n"])
        return png(circles) if circles else None
