"""Heilbronn's problem in a triangle and in a convex region, and the ratio of distances of points.

All values keep under a change of scale, so the coordinates become integers first.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations, pairwise
from typing import Any

from hyperdomain_math.exact import RefusedError, common_denominator, points, rational, vectors
from hyperdomain_math.picture import dots, fitted, path
from hyperdomain_math.problem import Problem

Point = list[int]
_ALPHAEVOLVE = "AlphaEvolve, arXiv:2506.13131"


def heilbronn_triangle(answer: Any, n: int) -> Fraction:  # noqa: ANN401 - any JSON value
    """Return the area of the smallest triangle of ``n`` points, as a part of the triangle with the
    corners (0, 0), (1, 0) and (0, 1).

    An affine map keeps such parts, so each triangle gives the same problem.

    Raises:
        RefusedError: a point lies outside, or three points are on one line.
    """
    rows = vectors(answer, "point", 2, rational, n)
    side = common_denominator([x for row in rows for x in row])
    for i, (x, y) in enumerate(rows):
        if x < 0 or y < 0 or x + y > 1:
            raise RefusedError(f"point {i} lies outside of the triangle")
    return Fraction(_smallest([[int(v * side) for v in row] for row in rows]), side * side)


def heilbronn_convex(answer: Any, n: int) -> Fraction:  # noqa: ANN401
    """Return the area of the smallest triangle of ``n`` points as a part of their convex hull.

    The hull is the smallest convex region with the points, so no other one gives more.

    Raises:
        RefusedError: three points are on one line.
    """
    found = points(answer, n, 2)
    smallest = _smallest(found)  # not 0, so the hull has an area
    hull = _hull(found)
    area = sum(_cross(hull[0], a, b) for a, b in pairwise(hull[1:]))
    return Fraction(smallest, area)


def ratio(answer: Any, n: int, dimension: int) -> Fraction:  # noqa: ANN401
    """Return the square of the largest distance of ``n`` points, divided by that of the smallest.

    Raises:
        RefusedError: two points are equal.
    """
    squares = []
    for (i, a), (j, b) in combinations(enumerate(points(answer, n, dimension)), 2):
        squares.append(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
        if not squares[-1]:
            raise RefusedError(f"points {i} and {j} are equal")
    return Fraction(max(squares), min(squares))


def _cross(a: Point, b: Point, c: Point) -> int:
    """Return twice the area of a triangle; it is negative if the corners turn clockwise."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _smallest(found: Sequence[Point]) -> int:
    """Return twice the smallest area."""
    least = None
    for (i, a), (j, b), (k, c) in combinations(enumerate(found), 3):
        area = abs(_cross(a, b, c))
        if not area:
            raise RefusedError(f"points {i}, {j} and {k} are on one line")
        least = area if least is None else min(least, area)
    assert least is not None
    return least


def _hull(found: Sequence[Point]) -> list[Point]:
    """Return the corners of the convex hull, counter-clockwise (Andrew's monotone chain)."""
    chains: list[list[Point]] = []
    ordered = sorted(found)
    for direction in (ordered, ordered[::-1]):
        chain: list[Point] = []
        for point in direction:
            while len(chain) > 1 and _cross(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        chains.append(chain[:-1])
    return [*chains[0], *chains[1]]


def _parabola(n: int) -> list[list[str]]:
    """Return points of a parabola that touches two sides; no three of them are on a line."""
    steps = [Fraction(i, n - 1) for i in range(n)]
    return [[str(t * t), str((1 - t) ** 2)] for t in steps]


def _block(n: int, dimension: int) -> list[list[int]]:
    """Return the first ``n`` points of a grid of 3 or 4 points in each direction."""
    side = 4 if dimension == 2 else 3
    return [[i // side**axis % side for axis in range(dimension)] for i in range(n)]


def _draw_triangle(answer: Any) -> list[str]:  # noqa: ANN401
    rows = vectors(answer, "point", 2, rational)
    return [path([(0, 0), (1, 0), (0, 1), (0, 0)]), *dots([(float(x), float(y)) for x, y in rows])]


def _draw_hull(n: int, answer: Any) -> list[str]:  # noqa: ANN401
    found = points(answer, n, 2)
    places = fitted([*_hull(found), _hull(found)[0], *found])
    return [path(places[:-n]), *dots(places[-n:])]


def _draw_points(n: int, dimension: int, answer: Any) -> list[str]:  # noqa: ANN401
    return dots(fitted(points(answer, n, dimension)))


PROBLEMS = (
    Problem(
        name="heilbronn-triangle-11",
        text="Place 11 points in the triangle with the corners (0,0), (1,0) and (0,1), its sides "
        "included. Make the area of the smallest triangle that three of them form as large as you "
        "can. The value is that area divided by the area of the whole triangle.",
        form="a list of 11 points [x, y] with x >= 0, y >= 0 and x + y <= 1",
        goal="maximise",
        value_name="smallest area",
        record="0.036529889880",
        source=f"{_ALPHAEVOLVE}, B.9; the digits are of its published points",
        verify=partial(heilbronn_triangle, n=11),
        baseline=partial(_parabola, 11),
        draw=_draw_triangle,
    ),
    *(
        Problem(
            name=f"heilbronn-convex-{n}",
            text=f"Place {n} points in the plane. Make the area of the smallest triangle that three "
            "of them form, divided by the area of their convex hull, as large as you can.",
            form=f"a list of {n} points [x, y]",
            goal="maximise",
            value_name="smallest area",
            record=record,
            source=source,
            verify=partial(heilbronn_convex, n=n),
            baseline=partial(_parabola, n),
            draw=partial(_draw_hull, n),
        )
        for n, record, source in (
            (13, "0.030936889034", f"{_ALPHAEVOLVE}, B.10; the digits are of its published points"),
            (14, "0.0278355805", "EinsteinArena-new-SOTA, heilbronn-convex, April 2026"),
        )
    ),
    Problem(
        name="ratio-16",
        text="Place 16 points in the plane. Make the ratio of the largest distance between two of "
        "them to the smallest one as small as you can. The value is the square of that ratio.",
        form="a list of 16 points [x, y]",
        goal="minimise",
        value_name="squared ratio",
        record="12.889230",
        source="EinsteinArena-new-SOTA, min-distance-ratio-2d, March 2026; 12.889266 by "
        f"{_ALPHAEVOLVE}, B.8",
        verify=partial(ratio, n=16, dimension=2),
        baseline=partial(_block, 16, 2),
        draw=partial(_draw_points, 16, 2),
    ),
    Problem(
        name="ratio-space-14",
        text="Place 14 points in space. Make the ratio of the largest distance between two of them "
        "to the smallest one as small as you can. The value is the square of that ratio.",
        form="a list of 14 points [x, y, z]",
        goal="minimise",
        value_name="squared ratio",
        record="4.165783989",
        source=f"Berthold et al. 2026, arXiv:2601.05943; 4.165849767 by {_ALPHAEVOLVE}, B.8",
        verify=partial(ratio, n=14, dimension=3),
        baseline=partial(_block, 14, 3),
        draw=partial(_draw_points, 14, 3),
    ),
)
