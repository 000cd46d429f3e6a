"""Choose the parent of a generation by a formula; pure functions.

A choice depends only on the seed, the generation's number and the archive. So a resumed run makes
the same choices as an uninterrupted one. The interface of
rules, and other rules: ``selection.py``, ``selection_rules.py``.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence

import attrs

FORMULAS = ("random", "latest", "best", "score_prop", "score_child_prop", "dgm")
RULES = (*FORMULAS, "islands", "map_elites", "novelty")

GenId = str | int
_STEEPNESS = 10.0
_TOP = 3
_CHILDREN_SCALE = 8.0
_DGM_MIDPOINT = 0.5


def number_of(genid: GenId) -> int:
    """Return the place of a generation in the order of their ids; the first one has -1."""
    return -1 if isinstance(genid, str) else genid


@attrs.frozen
class Candidate:
    """A generation that may become a parent.

    Attributes:
        genid: its id.
        score: mean over the domains.
        children: how many archived generations have it as their parent.
        metrics: means of the metrics on the split that selects parents; of a metric of several
            domains, the mean over them.
    """

    genid: GenId
    score: float
    children: int
    metrics: Mapping[str, float] = attrs.field(factory=dict, hash=False)


def midpoint(scores: Sequence[float]) -> float:
    """Return the mean of the three best scores, where the sigmoid is one half."""
    top = heapq.nlargest(_TOP, scores)
    return math.fsum(top) / len(top)


def sigmoid(score: float, middle: float) -> float:
    """Return ``1 / (1 + exp(-10 (score - middle)))``."""
    exponent = -_STEEPNESS * (score - middle)
    if exponent > 700:  # exp() would overflow; the value is 0 to every digit
        return 0.0
    return 1.0 / (1.0 + math.exp(exponent))


def normalised(scores: Sequence[float]) -> list[float]:
    """Return scores in [0, 1]; scores that are all in this range are returned as they are.

    The steepness of the sigmoid and the midpoint of ``dgm`` are made for this range. Otherwise the
    range from 0, or the lowest score if it is negative, to 1, or the highest score if it is above
    1, is mapped to [0, 1]. So a score just above 1 changes the other ones only a little.

    Example:
        >>> normalised([0.5, 1.0, 2.0])
        [0.25, 0.5, 1.0]
    """
    low = min(0.0, *scores)
    high = max(1.0, *scores)
    return (
        [(score - low) / (high - low) for score in scores]
        if (low, high) != (0.0, 1.0)
        else list(scores)
    )


def weights(rule: str, candidates: Sequence[Candidate]) -> list[float]:
    """Return one weight per candidate; the weights need not add up to 1.

    The formulas use the scores of the candidates as :func:`normalised` returns them.

    ``score_prop`` uses the sigmoid, ``score_child_prop`` the sigmoid times
    ``exp(-(children / 8) ** 3)``, and ``dgm`` the sigmoid around 0.5 times ``1 / (1 + children)``.
    All weights are equal for ``random``, and when all are zero.

    Raises:
        ValueError: the rule has no weights (``best``, ``latest``) or is unknown.
    """
    if rule not in ("random", "score_prop", "score_child_prop", "dgm"):
        raise ValueError(f"rule {rule!r} has no weights")
    if rule == "random":
        return [1.0] * len(candidates)
    scores = normalised([candidate.score for candidate in candidates])
    middle = _DGM_MIDPOINT if rule == "dgm" else midpoint(scores)
    pairs = zip(scores, candidates, strict=True)
    values = [
        sigmoid(score, middle) * _damping(rule, candidate.children) for score, candidate in pairs
    ]
    return values if math.fsum(values) > 0 else [1.0] * len(candidates)


def _damping(rule: str, children: int) -> float:
    """Return the factor, at most 1, by which children reduce a candidate's weight."""
    if rule == "score_child_prop":
        return math.exp(-((children / _CHILDREN_SCALE) ** 3))
    return 1.0 / (1 + children) if rule == "dgm" else 1.0


def select_parent(
    rule: str, candidates: Sequence[Candidate], *, seed: int, generation: int
) -> GenId:
    """Return the id of the parent of a generation.

    Args:
        rule: one of ``FORMULAS``.
        candidates: at least one, in archive order.
        seed: seed of the run.
        generation: number of the new generation.

    Raises:
        ValueError: there are no candidates, or the rule is unknown.
    """
    if not candidates:
        raise ValueError("there is no candidate to select from")
    if rule == "latest":
        return candidates[-1].genid
    if rule == "best":
        return max(candidates, key=lambda candidate: candidate.score).genid
    source = random.Random(f"{seed}:{generation}")  # noqa: S311 - reproducible on purpose
    return source.choices(candidates, weights=weights(rule, candidates))[0].genid
