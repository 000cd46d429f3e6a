"""Choose the parent of a generation; pure.

A choice depends on the seed, the generation's number and what the archive holds, and on nothing else, so that
a resumed run chooses what the interrupted one would have.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

import attrs

SELECTIONS = ("random", "latest", "best", "score_prop", "score_child_prop", "dgm")

GenId = str | int
_STEEPNESS = 10.0
_TOP = 3
_CHILDREN_SCALE = 8.0
_DGM_MIDPOINT = 0.5


@attrs.frozen
class Candidate:
    """A generation that may become a parent.

    Attributes:
        genid: its id.
        score: mean over the domains.
        children: how many archived generations have it as their parent.
    """

    genid: GenId
    score: float
    children: int


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


def weights(rule: str, candidates: Sequence[Candidate]) -> list[float]:
    """Return the candidates' weights, which need not add up to one.

    ``score_prop`` weighs by the sigmoid, ``score_child_prop`` by the sigmoid times ``exp(-(children / 8) ** 3)``, and
    ``dgm`` by the sigmoid around 0.5 times ``1 / (1 + children)``; where all are zero, and for ``random``, each weighs
    the same.

    Raises:
        ValueError: the rule draws nothing (``best``, ``latest``) or is unknown.
    """
    if rule not in ("random", "score_prop", "score_child_prop", "dgm"):
        raise ValueError(f"rule {rule!r} has no weights")
    if rule == "random":
        return [1.0] * len(candidates)
    middle = _DGM_MIDPOINT if rule == "dgm" else midpoint([candidate.score for candidate in candidates])
    values = [sigmoid(candidate.score, middle) * _damping(rule, candidate.children) for candidate in candidates]
    return values if math.fsum(values) > 0 else [1.0] * len(candidates)


def _damping(rule: str, children: int) -> float:
    """Return what is left of a candidate's weight when it has had children."""
    if rule == "score_child_prop":
        return math.exp(-((children / _CHILDREN_SCALE) ** 3))
    return 1.0 / (1 + children) if rule == "dgm" else 1.0


def select_parent(rule: str, candidates: Sequence[Candidate], *, seed: int, generation: int) -> GenId:
    """Return the id of the parent of a generation.

    Args:
        rule: one of ``SELECTIONS``. candidates: in the order of the archive, at least one.
        seed: the run's. generation: the number of the generation that is to be made.

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
