"""Inequalities about step functions: three of autocorrelation, and Erdos' minimum overlap.

A step function has equal steps. The convolution of two of them is continuous, and linear between
the multiples of a step's width, because it changes there at the rate at which two steps overlap. So
its largest and smallest values are among those at the multiples, and these are sums of products.
All values keep if the function is multiplied by a positive number, so the heights become integers.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

from hyperdomain_math.exact import RefusedError, common_denominator, convolve, rationals
from hyperdomain_math.picture import path
from hyperdomain_math.problem import Problem

_ARENA = "EinsteinArena-new-SOTA"


def autocorrelation_1(answer: Any) -> Fraction:  # noqa: ANN401 - any JSON value
    """Return ``max f*f / (integral of f)^2`` of ``f >= 0`` on [-1/4, 1/4].

    With ``n`` steps of the width ``1/(2n)``, it is ``2n max(c) / (sum a)^2`` for the heights ``a``
    and ``c = a*a``.

    Raises:
        RefusedError: a height is negative, or all are zero.
    """
    heights = _heights(answer)
    return Fraction(2 * len(heights) * max(convolve(heights, heights)), sum(heights) ** 2)


def autocorrelation_2(answer: Any) -> Fraction:  # noqa: ANN401
    """Return ``|f*f|_2^2 / (|f*f|_1 |f*f|_inf)`` of ``f >= 0``.

    Between two multiples of the width ``w``, ``f*f`` goes linearly from ``w p`` to ``w q``, so its
    square has there the integral ``w^3 (p^2 + p q + q^2) / 3``; ``|f*f|_1`` is
    ``(w sum a)^2``. The widths cancel.

    Raises:
        RefusedError: a height is negative, or all are zero.
    """
    heights = _heights(answer)
    nodes = [0, *convolve(heights, heights), 0]
    square = sum(p * p + p * q + q * q for p, q in pairwise(nodes))
    return Fraction(square, 3 * sum(heights) ** 2 * max(nodes))


def autocorrelation_3(answer: Any) -> Fraction:  # noqa: ANN401
    """Return ``max |f*f| / (integral of f)^2`` of any ``f`` on [-1/4, 1/4]; as for the first.

    Raises:
        RefusedError: the integral is zero.
    """
    heights = _integers(answer)
    if not sum(heights):
        raise RefusedError("the integral of the function is zero")
    largest = max(map(abs, convolve(heights, heights)))
    return Fraction(2 * len(heights) * largest, sum(heights) ** 2)


def overlap(answer: Any) -> Fraction:  # noqa: ANN401
    """Return the largest integral of ``f(t) g(x + t)`` for any ``x``.

    ``f`` goes from [-1, 1] to [0, 1] and has the integral 1; ``g`` is ``1 - f`` there. Both are
    zero elsewhere.

    The heights ``a`` are scaled to the integral 1: with ``n`` steps of the width ``2/n`` and
    ``s = sum a``, ``f`` has the heights ``n a / (2 s)``. The value is
    ``max(sum a_i (2 s - n a_(i+k))) / (2 s^2)``.

    Raises:
        RefusedError: a height is negative, all are zero, or one is above 1 after the scaling.
    """
    heights = _heights(answer)
    count = len(heights)
    total = sum(heights)
    rest = [2 * total - count * a for a in heights]
    for i, left in enumerate(rest):
        if left < 0:
            raise RefusedError(f"height {i} is above 1 when the integral is 1")
    return Fraction(max(convolve(heights, rest[::-1])), 2 * total**2)


def _integers(answer: Any) -> list[int]:  # noqa: ANN401
    heights = rationals(answer, "the answer")
    if not heights:
        raise RefusedError("the answer has no height")
    common = common_denominator(heights)
    return [int(x * common) for x in heights]


def _heights(answer: Any) -> list[int]:  # noqa: ANN401
    """Return heights, multiplied to integers, that are not negative and not all zero."""
    heights = _integers(answer)
    for i, a in enumerate(heights):
        if a < 0:
            raise RefusedError(f"height {i} is negative")
    if not any(heights):
        raise RefusedError("all heights are zero")
    return heights


def _flat() -> list[int]:
    return [1]


def _draw(answer: Any) -> list[str]:  # noqa: ANN401
    heights = _integers(answer)
    low = min(0, *heights)
    size = max(1, max(heights) - low)
    count = len(heights)
    places = [
        (edge / count, (a - low) / size) for i, a in enumerate(heights) for edge in (i, i + 1)
    ]
    return [path([(0, -low / size), (1, -low / size)], 0.6), path(places)]


_FORM = "a list of at most 100000 heights of the equal steps of the function, from left to right"

PROBLEMS = (
    Problem(
        name="autocorrelation-1",
        text="Find a step function f >= 0 on [-1/4, 1/4], with equal steps, for which the largest "
        "value of its autoconvolution f*f, divided by the square of the integral of f, is as small "
        "as possible. The value is that quotient.",
        form=_FORM,
        goal="minimise",
        value_name="quotient",
        record="1.50286286",
        source=f"{_ARENA}, first-autocorrelation, April 2026; 1.5032 by Georgiev et al. 2025, "
        "arXiv:2511.02864",
        verify=autocorrelation_1,
        baseline=_flat,
        draw=_draw,
    ),
    Problem(
        name="autocorrelation-2",
        text="Find a step function f >= 0 with equal steps for which the square of the 2-norm of "
        "f*f, divided by the product of its 1-norm and its largest value, is as large as possible. "
        "The value is that quotient, which is below 1.",
        form=_FORM,
        goal="maximise",
        value_name="quotient",
        record="0.96258",
        source="ImprovEvolve, arXiv:2602.10233 (its function is not published); 0.961206: "
        f"{_ARENA}; 0.961021 by AlphaEvolve",
        verify=autocorrelation_2,
        baseline=_flat,
        draw=_draw,
    ),
    Problem(
        name="autocorrelation-3",
        text="Find a step function f on [-1/4, 1/4], with equal steps that may be negative, for "
        "which the largest absolute value of its autoconvolution f*f, divided by the square of the "
        "integral of f, is as small as possible. The value is that quotient.",
        form=_FORM,
        goal="minimise",
        value_name="quotient",
        record="1.454555",
        source=f"{_ARENA}, third-autocorrelation, March 2026, of the largest value without its "
        "sign; 1.4557 by AlphaEvolve, arXiv:2506.13131, B.3",
        verify=autocorrelation_3,
        baseline=_flat,
        draw=_draw,
    ),
    Problem(
        name="overlap",
        text="Erdos' minimum overlap. Find a step function f from [-1, 1] to [0, 1], with equal steps "
        "and the integral 1, for which the largest overlap is as small as possible: the largest "
        "integral over t of f(t) (1 - f(x + t)) for any shift x, where f and 1 - f count as zero "
        "outside of [-1, 1]. The value is that overlap. The heights are scaled to the integral 1.",
        form=_FORM,
        goal="minimise",
        value_name="overlap",
        record="0.380871",
        source=f"{_ARENA}, erdos-minimum-overlap, April 2026; 0.380876: TTT-Discover 2026; "
        "0.380924: Georgiev et al. 2025, arXiv:2511.02864",
        verify=overlap,
        baseline=_flat,
        draw=_draw,
    ),
)
