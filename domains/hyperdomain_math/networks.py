"""Sorting networks: the fewest comparators that sort all inputs of ``n`` channels.

By the 0-1 principle a network sorts all inputs if it sorts the ``2^n`` inputs of zeros and ones
(Knuth, The Art of Computer Programming 3, section 5.3.4, theorem Z). All of these are sorted at
once: bit ``t`` of a channel's integer is its value for the input ``t``.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

from hyperdomain_math.exact import RefusedError, integer, items
from hyperdomain_math.picture import path
from hyperdomain_math.problem import Problem

_MOST = 1000
_PROVEN = (
    "proven: Knuth, section 5.3.4 (to 8); Codish et al. 2014, arXiv:1405.5754 (9, 10); "
    "Harder 2020, arXiv:2012.04400 (11, 12)"
)
_KNUTH = "Knuth, The Art of Computer Programming 3, section 5.3.4; not proven to be the fewest"
SIZES = {
    4: 5, 5: 9, 6: 12, 7: 16, 8: 19, 9: 25, 10: 29, 11: 35, 12: 39, 13: 45, 14: 51, 15: 56, 16: 60,
}  # fmt: skip


def network(answer: Any, n: int) -> Fraction:  # noqa: ANN401 - any JSON value
    """Return the number of comparators.

    Raises:
        RefusedError: a comparator is invalid, or an input is not sorted.
    """
    comparators = _comparators(answer, n)
    channels = [_inputs(i, n) for i in range(n)]
    for i, j in comparators:
        channels[i], channels[j] = channels[i] & channels[j], channels[i] | channels[j]
    for low, high in pairwise(channels):
        if wrong := low & ~high:
            first = (wrong & -wrong).bit_length() - 1
            shown = "".join(str(first >> i & 1) for i in range(n))
            raise RefusedError(f"the input {shown} is not sorted")
    return Fraction(len(comparators))


def _comparators(answer: Any, n: int) -> list[tuple[int, int]]:  # noqa: ANN401
    found = []
    for k, comparator in enumerate(items(answer, "the answer", most=_MOST)):
        pair = items(comparator, f"comparator {k}", 2)
        i, j = (integer(x, f"comparator {k}") for x in pair)
        if not 0 <= i < j < n:
            raise RefusedError(f"comparator {k} is not [i, j] with 0 <= i < j < {n}")
        found.append((i, j))
    return found


def _inputs(channel: int, n: int) -> int:
    """Return the values of a channel for all inputs of zeros and ones."""
    half = 1 << channel
    bits = ((1 << half) - 1) << half
    for doubled in range(channel + 1, n):
        bits |= bits << (1 << doubled)
    return bits


def _bubble(n: int) -> list[list[int]]:
    """Return the comparators of bubble sort."""
    return [[i, i + 1] for end in range(n - 1, 0, -1) for i in range(end)]


def _draw(n: int, answer: Any) -> list[str]:  # noqa: ANN401
    comparators = _comparators(answer, n)
    heights = [1 - (i + 0.5) / n for i in range(n)]
    lines = [path([(0, y), (1, y)], 0.6) for y in heights]
    for k, (i, j) in enumerate(comparators):
        x = (k + 0.5) / len(comparators)
        lines.append(path([(x, heights[i]), (x, heights[j])], 2.0))
    return lines


PROBLEMS = tuple(
    Problem(
        name=f"sorting-{n}",
        text=f"Find a sorting network of {n} channels with few comparators. A comparator [i, j] with "
        "i < j puts the smaller value on channel i and the larger one on channel j. After all "
        "comparators, in the order of the list, the values must be ascending for every input. The "
        "value is the number of comparators.",
        form=f"a list of comparators [i, j] with 0 <= i < j < {n}",
        goal="minimise",
        value_name="number of comparators",
        record=str(size),
        source=_PROVEN if n <= 12 else _KNUTH,
        verify=partial(network, n=n),
        baseline=partial(_bubble, n),
        draw=partial(_draw, n),
    )
    for n, size in SIZES.items()
)
