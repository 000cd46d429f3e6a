"""Kissing configurations: equal spheres that touch one sphere, as vectors of integers.

If ``C`` is a set of vectors, and no two are nearer to each other than the longest one is to 0, then
the spheres of radius 1/2 around the vectors divided by their lengths touch one around 0 and do not
overlap. The proof: let ``|x| >= |y|`` in ``C``. Then ``|x - y|^2 >= |x|^2`` gives
``2 x.y <= |y|^2 <= |x| |y|``, so the angle between them is at least 60 degrees. Source:
AlphaEvolve, arXiv:2506.13131, B.11, Lemma 1.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import combinations
from operator import mul
from typing import Any

from hyperdomain_math.exact import RefusedError, integer, vectors
from hyperdomain_math.picture import dots, fitted
from hyperdomain_math.problem import Problem

_COHN = "H. Cohn, Table of kissing number bounds, https://cohn.mit.edu/kissing-numbers"
_MOST = 2000
RECORDS = {
    4: ("24", f"{_COHN}; proven by Musin 2003"),
    5: ("40", _COHN),
    6: ("72", _COHN),
    7: ("126", _COHN),
    8: ("240", f"{_COHN}; proven by Levenshtein 1979, Odlyzko and Sloane 1979"),
    9: ("306", _COHN),
    10: ("510", f"{_COHN}; Ganzhinov, arXiv:2207.08266"),
    11: ("604", f"{_COHN}; Bianchi et al. 2026, arXiv:2606.10402; 593 by AlphaEvolve"),
    12: ("841", f"{_COHN}; Takhanov, Assylbekov and Yun 2026, arXiv:2606.18984"),
}


def kissing(answer: Any, dimension: int) -> Fraction:  # noqa: ANN401 - any JSON value
    """Return the number of vectors.

    Raises:
        RefusedError: they are no kissing configuration.
    """
    found = _vectors(answer, dimension)
    squares = [sum(map(mul, v, v)) for v in found]
    for i, square in enumerate(squares):
        if not square:
            raise RefusedError(f"vector {i} is zero")
    longest = max(squares)
    for i, v in enumerate(found):
        room = squares[i] - longest
        for j in range(i):
            if squares[j] + room < 2 * sum(map(mul, v, found[j])):
                raise RefusedError(
                    f"vectors {j} and {i} are nearer to each other than the longest vector is long"
                )
    return Fraction(len(found))


def _vectors(answer: Any, dimension: int) -> list[list[int]]:  # noqa: ANN401
    return vectors(answer, "vector", dimension, integer, most=_MOST)


def _roots(dimension: int) -> list[list[int]]:
    """Return the shortest vectors of the lattice ``D_n``: two entries are 1 or -1."""
    return [
        [a if k == i else b if k == j else 0 for k in range(dimension)]
        for i, j in combinations(range(dimension), 2)
        for a in (1, -1)
        for b in (1, -1)
    ]


def _draw(dimension: int, answer: Any) -> list[str]:  # noqa: ANN401
    return dots(fitted(_vectors(answer, dimension)))


PROBLEMS = tuple(
    Problem(
        name=f"kissing-{d}",
        text=f"Find many vectors of {d} integers, none of them zero, such that the distance between "
        "any two of them is at least the length of the longest one. They prove how many equal "
        f"spheres can touch one sphere in dimension {d} without overlapping. The value is the number "
        "of vectors.",
        form=f"a list of vectors, each a list of {d} integers",
        goal="maximise",
        value_name="number of vectors",
        record=record,
        source=source,
        verify=partial(kissing, dimension=d),
        baseline=partial(_roots, d),
        draw=partial(_draw, d),
    )
    for d, (record, source) in RECORDS.items()
)
