"""Sets of integers: sums and differences, and Golomb rulers."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import combinations, count
from typing import Any

from hyperdomain_math.exact import RefusedError, integer, items, log_ratio_below
from hyperdomain_math.picture import ticks
from hyperdomain_math.problem import Problem

_MOST_NUMBERS = 60_000
_LARGEST = 1 << 22
_MOST_MARKS = 1000
_OEIS = "https://oeis.org/A003022; proven to be the shortest"
_SHEARER = "J. B. Shearer, table of the shortest known Golomb rulers; not proven to be the shortest"
RULERS = {
    10: 55, 12: 85, 14: 127, 16: 177, 18: 216, 20: 283, 22: 356, 24: 425, 26: 492, 27: 553, 28: 585,
    29: 623, 30: 680, 31: 747, 32: 784,
}  # fmt: skip
_PROVEN = 28


def sums_differences(answer: Any) -> Fraction:  # noqa: ANN401 - any JSON value
    """Return a rational that is at most ``1 + log(|U-U| / |U+U|) / log(2 max(U) + 1)``.

    That value is a lower bound of the exponent c for which sets A, B with ``|A+B| << |A|`` and
    ``|A-B| >> |A+B|^c`` exist, for each finite set U of non-negative integers that contains 0
    (Gyarmati, Hennecart and Ruzsa 2007). Both sizes are exact: the sets are the bits of integers.
    The logarithms are bounded in :func:`~hyperdomain_math.exact.log_ratio_below`.

    Raises:
        RefusedError: U is no such set.
    """
    numbers = _integers(answer, _MOST_NUMBERS)
    if min(numbers) < 0 or max(numbers) > _LARGEST:
        raise RefusedError(f"too large: a number is not from 0 to {_LARGEST}")
    if 0 not in numbers:
        raise RefusedError("the set does not contain 0")
    largest = max(numbers)
    if not largest:
        raise RefusedError("the set has no other number than 0")
    bits = sum(1 << x for x in numbers)
    sums = 0
    differences = 0
    for x in numbers:
        sums |= bits << x
        differences |= bits << (largest - x)
    return 1 + log_ratio_below(differences.bit_count(), sums.bit_count(), 2 * largest + 1)


def golomb(answer: Any, n: int) -> Fraction:  # noqa: ANN401
    """Return the length of a ruler with ``n`` marks.

    Raises:
        RefusedError: two pairs of marks have the same distance.
    """
    marks = sorted(_integers(answer, _MOST_MARKS))
    if len(marks) != n:
        raise RefusedError(f"the answer has {len(marks)} marks, not {n}")
    seen: dict[int, tuple[int, int]] = {}
    for a, b in combinations(marks, 2):
        if (other := seen.setdefault(b - a, (a, b))) != (a, b):
            raise RefusedError(f"the distance {b - a} occurs twice: {other} and {(a, b)}")
    return Fraction(marks[-1] - marks[0])


def _integers(answer: Any, most: int) -> list[int]:  # noqa: ANN401
    numbers = [
        integer(x, f"number {i}") for i, x in enumerate(items(answer, "the answer", most=most))
    ]
    if not numbers:
        raise RefusedError("the answer has no number")
    if len(set(numbers)) < len(numbers):
        raise RefusedError("a number occurs twice")
    return numbers


def _greedy(n: int) -> list[int]:
    """Return the marks that a search finds which takes each possible mark (Mian-Chowla)."""
    marks = [0]
    distances: set[int] = set()
    for mark in count(1):
        if len(marks) == n:
            break
        new = {mark - other for other in marks}
        if not new & distances:
            distances |= new
            marks.append(mark)
    return marks


def _small() -> list[int]:
    return [0, 1, 3]


PROBLEMS = (
    Problem(
        name="sums-differences",
        text="Find a finite set U of non-negative integers that contains 0, with many differences "
        "and few sums. The value is 1 + log(|U-U| / |U+U|) / log(2 max(U) + 1), where U-U and U+U "
        "are the sets of all differences and sums of two elements.",
        form=f"a list of at most {_MOST_NUMBERS} different integers from 0 to {_LARGEST}",
        goal="maximise",
        value_name="exponent",
        record="1.1835129324",
        source="submitted to github.com/teorth/optimizationproblems, constant 3a, 2026, not "
        "refereed; 1.173077: Zheng 2025, arXiv:2506.01896; 1.1584 by AlphaEvolve, B.6",
        verify=sums_differences,
        baseline=_small,
        draw=ticks,
    ),
    *(
        Problem(
            name=f"golomb-{n}",
            text=f"Find a Golomb ruler with {n} marks: {n} integers whose differences are all "
            "different. The value is its length, the largest mark minus the smallest one, which "
            "should be as small as possible.",
            form=f"a list of {n} integers",
            goal="minimise",
            value_name="length",
            record=str(length),
            source=_OEIS if n <= _PROVEN else _SHEARER,
            verify=partial(golomb, n=n),
            baseline=partial(_greedy, n),
            draw=ticks,
        )
        for n, length in RULERS.items()
    ),
)
