"""The tasks: the numbers of circles, the allowed work, and the best known sums of radii.

The best known sums stay on the host: a task's inputs do not hold them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from hyperruntime.domain import Split, Task

BEST_KNOWN: Mapping[int, float] = MappingProxyType(
    {
        1: 0.5,
        2: 2 - math.sqrt(2),
        8: 1.423,
        11: 1.680,
        14: 1.905,
        17: 2.111,
        26: 2.635983,
        32: 2.939572,
    }
)
"""Best known sum of radii of ``n`` disjoint circles in the unit square.

Source: Erich Friedman, Packing Center, "Circles in Squares" by sum of radii
(https://erich-friedman.github.io/packing/cirRsqu/). n=1 and n=2 are exact. For 8 <= n <= 17 the page gives three
decimals, truncated ("1.423+"), so its best packings score up to 1.0005. n=26: 2.635 by AlphaEvolve (Novikov et al.
2025, arXiv:2506.13131, appendix B.12), now listed as "2.63598+". n=32: 2.937 by AlphaEvolve, now 2.939572 (Georgiev,
Gomez-Serrano, Tao, Wagner 2025, arXiv:2511.02864), listed as "2.939+".
"""

SPLITS = (
    Split(name="train", staged_samples=2, staged_threshold=0.1),
    Split(name="val"),
)

_SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType({"train": (8, 11, 14, 17), "val": (26, 32)})
_WORK: Mapping[str, int] = MappingProxyType({"train": 1_200_000, "val": 6_000_000})
_TIME_LIMIT_S: Mapping[str, float] = MappingProxyType({"train": 2.0, "val": 6.0})


def tasks_of(split: str) -> tuple[Task, ...]:
    """Return the tasks of a split, smallest n first.

    Their input ``work`` limits the number of pair evaluations, so an answer depends on the program and the seed but not
    on the machine's load. ``time_limit_s`` (CPU seconds) is a second, higher limit.

    Raises:
        KeyError: the split is unknown.
    """
    return tuple(
        Task(
            id=f"n{n:02d}",
            inputs={"n": n, "seed": 1000 + n, "work": _WORK[split], "time_limit_s": _TIME_LIMIT_S[split]},
        )
        for n in _SIZES[split]
    )
