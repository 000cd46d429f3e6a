"""Circle packing in a square and in a rectangle of perimeter 4: the largest sum of radii.

Two circles are disjoint if ``(x1 - x2)^2 + (y1 - y2)^2 >= (r1 + r2)^2``, which needs no root. There
is no tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any

from hyperdomain_math.exact import RefusedError, rational, vectors
from hyperdomain_math.picture import discs, path
from hyperdomain_math.problem import Problem

ExactCircle = tuple[Fraction, Fraction, Fraction]
BEST_KNOWN: Mapping[int, str] = MappingProxyType(
    {
        1: "0.5",
        2: "0.585786437626",
        8: "1.4238140",
        11: "1.6800584",
        14: "1.9056673",
        17: "2.1111854",
        20: "2.3011229",
        23: "2.470",
        26: "2.635983",
        32: "2.939572",
    }
)
"""Best known sum of radii of ``n`` disjoint circles in the unit square.

Source: Erich Friedman, Packing Center, "Circles in Squares" by sum of radii
(https://erich-friedman.github.io/packing/cirRsqu/). n=1 and n=2: 1/2 and 2 - sqrt(2), proven. For
8 <= n <= 17 the page gives three decimals ("1.423+"); the other digits are from our own search,
sequential quadratic programming from 700 to 12,000 starts each, rounded up. n=20: the same search,
which the page does not list. n=23: an earlier search, known to three decimals. n=26 and n=32:
Georgiev, Gomez-Serrano, Tao, Wagner 2025, arXiv:2511.02864; the page lists "2.63598+" and "2.939+".
"""
_SOURCES = {
    26: "Georgiev et al. 2025, arXiv:2511.02864; 2.635 by AlphaEvolve, arXiv:2506.13131",
    32: "Georgiev et al. 2025, arXiv:2511.02864; 2.937 by AlphaEvolve, arXiv:2506.13131",
}
_FRIEDMAN = "E. Friedman, Packing Center, https://erich-friedman.github.io/packing/cirRsqu/"
_SQUARE = (
    "Place {n} circles in the unit square [0,1] x [0,1] so that no circle leaves the square and no "
    "two overlap; they may touch. Make the sum of their radii as large as you can. Everything is "
    "checked exactly, so leave a gap of about 1e-12 where rounding could make an overlap."
)
_RECTANGLE = (
    "Place {n} circles in the plane so that no two overlap and their smallest upright bounding "
    "rectangle has width + height <= 2. Make the sum of their radii as large as you can. Everything "
    "is checked exactly, so leave a gap of about 1e-12 where rounding could make an overlap."
)
_FORM = 'a list of {n} circles [x, y, r]; numbers, or texts such as "0.1" or "1/3"'


def square(circles: Any, n: int) -> Fraction:  # noqa: ANN401 - any JSON value
    """Return the sum of the radii of circles in the unit square.

    Raises:
        RefusedError: they are no packing.
    """
    exact = exact_circles(circles, n)
    if problem := first_violation(exact):
        raise RefusedError(problem)
    return sum((r for _, _, r in exact), Fraction(0))


def rectangle(circles: Any, n: int) -> Fraction:  # noqa: ANN401
    """Return the sum of the radii of circles in a rectangle of perimeter 4.

    Raises:
        RefusedError: they are no packing.
    """
    exact = exact_circles(circles, n)
    for i, (_, _, r) in enumerate(exact):
        if r < 0:
            raise RefusedError(f"circle {i} has a negative radius")
    corner, size = _box(exact)
    if size[0] + size[1] > 2:
        by = _short(size[0] + size[1] - 2)
        raise RefusedError(f"the perimeter is too large: width + height exceed 2 by {by}")
    moved = [(x - corner[0], y - corner[1], r) for x, y, r in exact]
    if problem := first_overlap(moved):
        raise RefusedError(problem)
    return sum((r for _, _, r in exact), Fraction(0))


def exact_circles(value: Any, n: int) -> list[ExactCircle]:  # noqa: ANN401
    """Return ``n`` circles of an answer.

    Raises:
        RefusedError: it is not a list of ``n`` lists of three numbers.
    """
    return [(x, y, r) for x, y, r in vectors(value, "circle", 3, rational, n)]


def first_violation(exact: Sequence[ExactCircle]) -> str:
    """Return one sentence about the first fault of a packing of the unit square, or ""."""
    for i, (x, y, r) in enumerate(exact):
        if r < 0:
            return f"circle {i} has a negative radius"
        reach = r - min(x, y, 1 - x, 1 - y)
        if reach > 0:
            return f"circle {i} leaves the square by {_short(reach)}"
    return first_overlap(exact)


def first_overlap(circles: Sequence[ExactCircle]) -> str:
    """Return one sentence about the first two circles that overlap, or ""; no radius is negative
    and all circles are in a square of side 2.
    """
    for i, (x, y, r) in enumerate(circles):
        for j in range(i):
            square = (x - circles[j][0]) ** 2 + (y - circles[j][1]) ** 2
            reach = r + circles[j][2]
            if square < reach * reach:
                # reach - distance, without the difference of two rounded numbers
                both = float(reach) + math.sqrt(square)  # 0.0 for radii that no float can hold
                overlap = float(reach * reach - square) / both if both else 0.0
                by = f"{overlap:.3g}" if overlap else "less than 1e-300"
                return f"circles {j} and {i} overlap by {by}"
    return ""


def _short(value: Fraction) -> str:
    return f"{float(value):.3g}" if abs(value) < 1 else "1 or more"


def _box(circles: Sequence[ExactCircle]) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
    """Return the lower left corner and the size of the bounding rectangle."""
    low = tuple(min(c[axis] - c[2] for c in circles) for axis in (0, 1))
    high = tuple(max(c[axis] + c[2] for c in circles) for axis in (0, 1))
    return low, (high[0] - low[0], high[1] - low[1])


def _grid(n: int, width: Fraction) -> list[list[str]]:
    """Return ``n`` equal circles in a square grid, as wide as the square of this side."""
    rows = math.isqrt(n - 1) + 1
    r = width / (2 * rows)
    return [
        [str((2 * (i % rows) + 1) * r), str((2 * (i // rows) + 1) * r), str(r)] for i in range(n)
    ]


def drawn(exact: Sequence[ExactCircle]) -> list[str]:
    """Return shapes that show circles near the unit square."""
    return discs([(float(x), float(y), float(r)) for x, y, r in exact])


def _draw_square(n: int, circles: Any) -> list[str]:  # noqa: ANN401
    return drawn(exact_circles(circles, n))


def _draw_rectangle(n: int, circles: Any) -> list[str]:  # noqa: ANN401
    exact = exact_circles(circles, n)
    corner, size = _box(exact)
    scale = max(size) or 1
    w, h = (float(side / scale) for side in size)
    fitted = [((x - corner[0]) / scale, (y - corner[1]) / scale, r / scale) for x, y, r in exact]
    return [path([(0, 0), (w, 0), (w, h), (0, h), (0, 0)]), *drawn(fitted)]


def in_square(n: int) -> Problem:
    """Return the problem of ``n`` circles in the unit square; ``n`` is in ``BEST_KNOWN``."""
    return Problem(
        name=f"circles-{n}",
        text=_SQUARE.format(n=n),
        form=_FORM.format(n=n),
        goal="maximise",
        value_name="sum of radii",
        record=BEST_KNOWN[n],
        source=_SOURCES.get(n, _FRIEDMAN),
        verify=partial(square, n=n),
        baseline=partial(_grid, n, Fraction(1)),
        draw=partial(_draw_square, n),
    )


PROBLEMS = (
    *map(in_square, (26, 32)),
    Problem(
        name="rectangle-21",
        text=_RECTANGLE.format(n=21),
        form=_FORM.format(n=21),
        goal="maximise",
        value_name="sum of radii",
        record="2.3658323759",
        source="EinsteinArena-new-SOTA, circles-rectangle, April 2026, with overlaps of 3e-12; "
        "2.365832133 by AlphaEvolve, arXiv:2506.13131, B.13",
        verify=partial(rectangle, n=21),
        baseline=partial(_grid, 21, Fraction(1)),
        draw=partial(_draw_rectangle, 21),
    ),
)
