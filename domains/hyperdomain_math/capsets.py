"""Cap sets: vectors of ``n`` integers modulo 3, of which no three are on a line."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

from hyperdomain_math.exact import RefusedError, integer, vectors
from hyperdomain_math.picture import grid
from hyperdomain_math.problem import Problem

_OEIS = "https://oeis.org/A090245; proven to be the largest"
RECORDS = {
    3: (9, _OEIS),
    4: (20, _OEIS),
    5: (45, _OEIS),
    6: (112, _OEIS),
    7: (236, "table of Romera-Paredes et al. 2024 (FunSearch), doi:10.1038/s41586-023-06924-6"),
    8: (512, "Romera-Paredes et al. 2024 (FunSearch), doi:10.1038/s41586-023-06924-6"),
}


def cap_set(answer: Any, dimension: int) -> Fraction:  # noqa: ANN401 - any JSON value
    """Return the number of points.

    Three different points are on a line if and only if their sum is zero modulo 3.

    Raises:
        RefusedError: the points are no cap set.
    """
    found = _points(answer, dimension)
    places = {point: i for i, point in enumerate(found)}
    if len(places) < len(found):
        raise RefusedError("a point occurs twice")
    for j, b in enumerate(found):
        for i, a in enumerate(found[:j]):
            third = tuple([-(x + y) % 3 for x, y in zip(a, b, strict=True)])
            if (k := places.get(third)) is not None:
                raise RefusedError(f"points {i}, {j} and {k} are on one line")
    return Fraction(len(found))


def _points(answer: Any, dimension: int) -> list[tuple[int, ...]]:  # noqa: ANN401
    return list(map(tuple, vectors(answer, "point", dimension, _coordinate, most=3**dimension)))


def _coordinate(value: object, what: str) -> int:
    if not 0 <= (number := integer(value, what)) <= 2:
        raise RefusedError(f"{what} is not 0, 1 or 2")
    return number


def _cube(dimension: int) -> list[list[int]]:
    """Return the points with the coordinates 0 and 1."""
    return [list(point) for point in product((0, 1), repeat=dimension)]


def _draw(dimension: int, answer: Any) -> list[str]:  # noqa: ANN401
    half = dimension // 2
    cells = [(_number(point[:half]), _number(point[half:])) for point in _points(answer, dimension)]
    return grid(cells, 3**half, 3 ** (dimension - half))


def _number(digits: tuple[int, ...]) -> int:
    return sum(digit * 3**place for place, digit in enumerate(digits))


PROBLEMS = tuple(
    Problem(
        name=f"capset-{n}",
        text=f"Find many vectors of {n} integers modulo 3 such that no three different ones sum to "
        "zero modulo 3 (no three are on a line). The value is the number of vectors.",
        form=f"a list of vectors, each a list of {n} integers 0, 1 or 2",
        goal="maximise",
        value_name="number of points",
        record=str(size),
        source=source,
        verify=partial(cap_set, dimension=n),
        baseline=partial(_cube, n),
        draw=partial(_draw, n),
    )
    for n, (size, source) in RECORDS.items()
)
