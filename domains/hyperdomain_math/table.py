"""The table of all problems, by name."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from hyperdomain_math import (
    capsets,
    circles,
    kissing,
    networks,
    numbersets,
    points,
    steps,
    tensors,
    uncertainty,
)
from hyperdomain_math.problem import Problem

_FAMILIES = (
    circles,
    kissing,
    points,
    steps,
    uncertainty,
    numbersets,
    tensors,
    networks,
    capsets,
)

PROBLEMS: Mapping[str, Problem] = MappingProxyType(
    {problem.name: problem for family in _FAMILIES for problem in family.PROBLEMS}
)


def verify(name: str, answer: Any) -> Fraction:  # noqa: ANN401 - any JSON value
    """Return the exact value of an answer, in this process and without limits.

    Args:
        name: of the problem.
        answer: a value that ``json.loads`` returned.

    Raises:
        KeyError: there is no such problem.
        RefusedError: the answer is invalid; the message names the reason.
    """
    return PROBLEMS[name].verify(answer)
