"""Circle packing in a square and in a rectangle of perimeter 4: the largest sum of radii.

The geometry is that of the domain ``circle_packing``, at tolerance 0: two circles are disjoint if
``(x1 - x2)^2 + (y1 - y2)^2 >= (r1 + r2)^2``, which needs no root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from hyperdomain_circle_packing import BEST_KNOWN
from hyperdomain_circle_packing.picture import MARGIN, SIZE, colour, disc
from hyperdomain_circle_packing.score import ExactCircle, first_overlap, first_violation
from hyperdomain_math.exact import RefusedError, items, rationals
from hyperdomain_math.picture import path
from hyperdomain_math.problem import Problem

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
    exact = _circles(circles, n)
    if problem := first_violation(exact, Fraction(0)):
        raise RefusedError(problem)
    return sum((r for _, _, r in exact), Fraction(0))


def rectangle(circles: Any, n: int) -> Fraction:  # noqa: ANN401
    """Return the sum of the radii of circles in a rectangle of perimeter 4.

    Raises:
        RefusedError: they are no packing.
    """
    exact = _circles(circles, n)
    for i, (_, _, r) in enumerate(exact):
        if r < 0:
            raise RefusedError(f"circle {i} has a negative radius")
    corner, size = _box(exact)
    if size[0] + size[1] > 2:
        excess = size[0] + size[1] - 2
        by = f"{float(excess):.3g}" if excess < 1 else "1 or more"
        raise RefusedError(f"the perimeter is too large: width + height exceed 2 by {by}")
    moved = [(x - corner[0], y - corner[1], r) for x, y, r in exact]
    if problem := first_overlap(moved, Fraction(0)):
        raise RefusedError(problem)
    return sum((r for _, _, r in exact), Fraction(0))


def _circles(value: Any, n: int) -> list[ExactCircle]:  # noqa: ANN401
    found = []
    for i, circle in enumerate(items(value, "the answer", n)):
        x, y, r = rationals(circle, f"circle {i}", 3)
        found.append((x, y, r))
    return found


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


def _draw(n: int, circles: Any) -> list[str]:  # noqa: ANN401
    exact = _circles(circles, n)
    corner, size = _box(exact)
    largest = float(max(r for _, _, r in exact))
    scale = float(max(size)) or 1.0
    shapes = []
    for x, y, r in exact:
        fill = "#{:02x}{:02x}{:02x}".format(*colour(float(r), largest))
        place = (float(x - corner[0]) / scale, float(y - corner[1]) / scale)
        shapes.append(disc(*place, float(r) / scale * (SIZE - 2 * MARGIN), fill))
    w, h = (float(side) / scale for side in size)
    return [path([(0, 0), (w, 0), (w, h), (0, h), (0, 0)]), *shapes]


PROBLEMS = (
    *(
        Problem(
            name=f"circles-{n}",
            text=_SQUARE.format(n=n),
            form=_FORM.format(n=n),
            goal="maximise",
            value_name="sum of radii",
            record=str(BEST_KNOWN[n]),
            source=source,
            verify=partial(square, n=n),
            baseline=partial(_grid, n, Fraction(1)),
            draw=partial(_draw, n),
        )
        for n, source in (
            (26, "Georgiev et al. 2025, arXiv:2511.02864; 2.635 by AlphaEvolve, arXiv:2506.13131"),
            (32, "Georgiev et al. 2025, arXiv:2511.02864; 2.937 by AlphaEvolve, arXiv:2506.13131"),
        )
    ),
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
        draw=partial(_draw, 21),
    ),
)
