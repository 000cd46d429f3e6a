"""Check a packing by exact rational arithmetic; no answer raises an error.

Every float is a rational number, so rounding does not affect the decision about validity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

Circle = tuple[float, float, float]
ExactCircle = tuple[Fraction, Fraction, Fraction]

TOLERANCE = Fraction(1, 10**9)
"""The largest allowed reach of a circle over a wall or into another circle."""

_LARGEST = 2


def parse_circles(prediction: object, n: int) -> tuple[tuple[Circle, ...], str]:
    """Return ``n`` finite ``(x, y, r)`` and "", or no circles and one sentence about the problem.

    Only plain lists, tuples, ints and floats are accepted, so code of the answer never runs.

    Args:
        prediction: the answer, any JSON value.
        n: the number of circles of the task.
    """
    if not (type(prediction) is list or type(prediction) is tuple):
        return (), f"the answer is {_kind(prediction)}, not a list of [x, y, r]"
    if len(prediction) != n:
        return (), f"the answer has {len(prediction)} circles, not {n}"
    circles: list[Circle] = []
    for index, item in enumerate(prediction):
        circle = _parse_circle(item)
        if isinstance(circle, str):
            return (), f"circle {index}: {circle}"
        circles.append(circle)
    return tuple(circles), ""


def first_violation(
    circles: Sequence[Circle] | Sequence[ExactCircle], tolerance: Fraction = TOLERANCE
) -> str:
    """Return one sentence about the first violated constraint, or "" for a valid packing.

    The constraints are ``r >= 0``, ``r - t <= x, y <= 1 - r + t`` and
    ``|c_i - c_j| >= r_i + r_j - t`` with the tolerance ``t``. Both sides of the last one are
    squared, which needs no root.

    Args:
        circles: finite ``(x, y, r)``.
        tolerance: ``t``, in units of the square's side.
    """
    exact = [(Fraction(x), Fraction(y), Fraction(r)) for x, y, r in circles]
    for i, (x, y, r) in enumerate(exact):
        if r < 0:
            return f"circle {i} has the negative radius {float(r):.6g}"
        reach = r - min(x, y, 1 - x, 1 - y)
        if reach > tolerance:
            return f"circle {i} leaves the square by {float(reach):.3g}"
    return first_overlap(exact, tolerance)


def first_overlap(circles: Sequence[ExactCircle], tolerance: Fraction) -> str:
    """Return one sentence about the first two circles that overlap, or "".

    Args:
        circles: exact ``(x, y, r)``.
        tolerance: the largest allowed overlap.
    """
    for i, (x, y, r) in enumerate(circles):
        for j in range(i):
            square = (x - circles[j][0]) ** 2 + (y - circles[j][1]) ** 2
            reach = r + circles[j][2]
            if reach > tolerance and square < (reach - tolerance) ** 2:
                # reach - distance, without the difference of two rounded numbers
                overlap = float(reach * reach - square) / (float(reach) + math.sqrt(square))
                return f"circles {j} and {i} overlap by {overlap:.3g}"
    return ""


def _parse_circle(item: object) -> Circle | str:
    """Return three finite numbers, or the problem of the item."""
    if not (type(item) is list or type(item) is tuple):
        return f"{_kind(item)}, not [x, y, r]"
    if len(item) != 3:
        return f"{len(item)} values, not x, y and r"
    for name, number in zip("xyr", item, strict=True):
        if type(number) is not int and type(number) is not float:
            return f"{name} is {_kind(number)}, not a number"
        if not -_LARGEST <= number <= _LARGEST:  # false for NaN and infinities too
            return f"{name} is not a finite number near the unit square"
    return float(item[0]), float(item[1]), float(item[2])


def _kind(value: object) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"
