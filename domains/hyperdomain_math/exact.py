"""Read the numbers of an answer as exact rationals, and calculate with them. Standard library only.

A float is the binary fraction that it is, ``"0.1"`` is one tenth, ``"1/3"`` is a third. Nothing is
rounded, so there is no tolerance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_FLOOR, Context
from fractions import Fraction
from typing import TypeVar

T = TypeVar("T")

MAX_DIGITS = 400
"""The largest number of digits of a numerator or a denominator; every float has fewer."""

_MAX_COMMON_BITS = 4096
_TEXT = re.compile(
    rf"-?\d{{1,{MAX_DIGITS}}}(\.\d{{1,{MAX_DIGITS}}})?([eE][+-]?\d{{1,3}})?"
    rf"|-?\d{{1,{MAX_DIGITS}}}/\d{{1,{MAX_DIGITS}}}",
    re.ASCII,
)
_LIMIT = 10**MAX_DIGITS
_LOG_DIGITS = 50


class RefusedError(Exception):
    """An answer that is invalid; the message names the reason."""


def kind(value: object) -> str:
    """Return the words for a JSON value of a wrong type."""
    names = {
        "NoneType": "null",
        "bool": "a boolean",
        "str": "a text",
        "list": "a list",
        "dict": "an object",
    }
    return names.get(type(value).__name__, "a number")


def items(value: object, what: str, count: int | None = None, most: int = 100_000) -> list[object]:
    """Return the items of a list.

    Args:
        value: any JSON value.
        what: its name, for messages.
        count: the number that it must have; None means any.
        most: the largest number that it may have.

    Raises:
        RefusedError: it is not a list, or has another number of items.
    """
    if type(value) is not list:
        raise RefusedError(f"{what} is {kind(value)}, not a list")
    if count is not None and len(value) != count:
        raise RefusedError(f"{what} has {len(value)} items, not {count}")
    if len(value) > most:
        raise RefusedError(f"too large: {what} has {len(value)} items, at most {most} are allowed")
    return value


def integer(value: object, what: str) -> int:
    """Return an integer.

    Raises:
        RefusedError: it is of another type, even a float with an integral value, or too large.
    """
    if type(value) is not int:
        shown = repr(value) if type(value) is float else kind(value)
        raise RefusedError(f"{what} is {shown}, not an integer")
    if abs(value) >= _LIMIT:
        raise RefusedError(f"too large: {what} has more than {MAX_DIGITS} digits")
    return value


def rational(value: object, what: str) -> Fraction:
    """Return the exact value of an integer, a float, a decimal text or a text ``p/q``.

    Raises:
        RefusedError: it is none of these, not finite, or too large.
    """
    if type(value) is float:
        if not math.isfinite(value):
            raise RefusedError(f"not finite: {what} is {value}")
        return Fraction(value)
    if type(value) is str:
        if not _TEXT.fullmatch(value):
            raise RefusedError(
                f"{what} is a text that is no decimal number and no fraction, "
                f"or has more than {MAX_DIGITS} digits"
            )
        if value.partition("/")[2].strip("0") == "" and "/" in value:
            raise RefusedError(f"{what} is divided by zero")
        found = Fraction(value)
        if max(abs(found.numerator), found.denominator) >= _LIMIT:
            raise RefusedError(f"too large: {what} has more than {MAX_DIGITS} digits")
        return found
    if type(value) is not int:
        raise RefusedError(f"{what} is {kind(value)}, not a number")
    return Fraction(integer(value, what))


def rationals(value: object, what: str, count: int | None = None) -> list[Fraction]:
    """Return the exact values of a list of numbers.

    Raises:
        RefusedError: it is not such a list, or has another number of items than ``count``.
    """
    return [rational(x, f"{what}[{i}]") for i, x in enumerate(items(value, what, count))]


def vectors(
    value: object,
    what: str,
    dimension: int,
    read: Callable[[object, str], T],
    count: int | None = None,
    most: int = 100_000,
) -> list[list[T]]:
    """Return vectors of ``dimension`` numbers each; at least one.

    Args:
        value: any JSON value.
        what: the name of one, for messages.
        dimension: how many numbers each of them has.
        read: reads a number, such as :func:`integer`.
        count: how many vectors there must be; None means any number.
        most: the largest number of vectors.

    Raises:
        RefusedError: it is no such list, or ``read`` refuses a number.
    """
    found = [
        [read(x, f"{what} {i}[{k}]") for k, x in enumerate(items(row, f"{what} {i}", dimension))]
        for i, row in enumerate(items(value, "the answer", count, most))
    ]
    if not found:
        raise RefusedError(f"the answer has no {what}")
    return found


def points(value: object, count: int, dimension: int) -> list[list[int]]:
    """Return points of rational coordinates, multiplied by their common denominator.

    For values that do not change with the scale.

    Raises:
        RefusedError: the value is not ``count`` points of ``dimension`` numbers.
    """
    rows = vectors(value, "point", dimension, rational, count)
    common = common_denominator([x for row in rows for x in row])
    return [[int(x * common) for x in row] for row in rows]


def common_denominator(numbers: Sequence[Fraction]) -> int:
    """Return the least common denominator.

    Raises:
        RefusedError: it is too large to calculate with.
    """
    common = 1
    for number in numbers:
        common = math.lcm(common, number.denominator)
        if common.bit_length() > _MAX_COMMON_BITS:
            raise RefusedError(
                f"too large: the common denominator has more than {_MAX_COMMON_BITS} bits"
            )
    return common


def convolve(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Return the sums ``left[i] * right[k - i]`` for each ``k``, by one product of large integers.

    Both lists are written as integers in a base so large that the digits of the product are the
    sums; a digit may be negative (Kronecker substitution).
    """
    highest = [max(map(abs, numbers)) for numbers in (left, right)]
    largest = max(*highest, highest[0] * highest[1] * min(len(left), len(right)))
    width = largest.bit_length() // 8 + 1
    count = len(left) + len(right) - 1
    half = 1 << (8 * width - 1)
    shift = int.from_bytes(half.to_bytes(width, "little") * count, "little")
    product = _digits(left, width) * _digits(right, width) + shift
    data = product.to_bytes(count * width, "little")
    return [
        int.from_bytes(data[i : i + width], "little") - half for i in range(0, len(data), width)
    ]


def _digits(numbers: Sequence[int], width: int) -> int:
    """Return the integer whose digits of ``width`` bytes are the numbers, the first one lowest."""
    above, below = (
        int.from_bytes(
            b"".join(max(0, sign * x).to_bytes(width, "little") for x in numbers), "little"
        )
        for sign in (1, -1)
    )
    return above - below


def log_ratio_below(upper: int, lower: int, base: int) -> Fraction:
    """Return a rational that is at most ``log(upper / lower) / log(base)``, and less than 1e-40
    below it.

    The proof: ``Decimal.ln`` is correctly rounded, so the true logarithm lies between its two
    neighbours of 50 digits. The numerator uses the lower neighbour of the first logarithm and the
    upper one of the second; it is divided by the neighbour that makes the quotient smaller. The
    difference and the quotient are rounded down.

    Source: Python's documentation, ``decimal``, ``Decimal.ln`` and ``Context.next_plus``.

    Args:
        upper: a positive integer.
        lower: a positive integer.
        base: an integer above 1.
    """
    context = Context(prec=_LOG_DIGITS, rounding=ROUND_FLOOR)
    logs = [context.ln(context.create_decimal(x)) for x in (upper, lower, base)]
    top = context.subtract(context.next_minus(logs[0]), context.next_plus(logs[1]))
    bottom = context.next_plus(logs[2]) if top >= 0 else context.next_minus(logs[2])
    return Fraction(context.divide(top, bottom))
