"""An uncertainty inequality: a function and its Fourier transform that are soon not negative.

For an even ``f`` with ``f(0) <= 0`` that is its own Fourier transform, let ``A`` be the smallest
number with ``f(x) >= 0`` for all ``|x| >= A``. Each such ``f`` proves that the constant is at most
``A^2``. Here ``f(x) = p(2 pi x^2) exp(-pi x^2)``, and ``p(t)`` is a combination of the Hermite
polynomials ``H_0, H_4, H_8, ...`` of ``sqrt(t)``, which gives such functions. The answer lists
double roots of ``p``; with ``p(0) = 0`` they determine it. All is calculated in integers. Sources:
Goncalves, Oliveira e Silva, Steinerberger, arXiv:1602.03366; by double roots: Cohn and Goncalves,
arXiv:1712.04438.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from hyperdomain_math.exact import RefusedError, common_denominator, rationals
from hyperdomain_math.picture import path
from hyperdomain_math.problem import Problem

Polynomial = list[int]
"""Coefficients, that of the constant first."""

_MOST_ROOTS = 16  # their check takes 16 s, that of 12 takes 4 s
_MOST_HALVINGS = 1000
_PRECISION = 120  # bits
_PI_BELOW = Fraction(314159265358979323846264338327950288419716939937510, 10**50)
_SHOWN_X = 3  # in units of 1 / sqrt(2 pi)


def uncertainty(answer: Any) -> Fraction:  # noqa: ANN401 - any JSON value
    """Return a rational that is at least ``A^2``, and less than 1e-30 above it.

    Between its roots ``p`` changes its sign where the roots are not double. So ``2 pi A^2`` is the
    largest positive root of ``p(t)``, divided by ``t`` and by ``(t - r)^2`` for each double root.

    Raises:
        RefusedError: the answer is no list of different positive numbers, they determine no
            function, or two of its other roots are too near to each other.
    """
    roots = _roots(answer)
    rest = function(roots)[1:]
    for root in (*roots, *roots):
        rest = _divided(rest, root)
    return _largest_root(rest) / (2 * _PI_BELOW)


def function(roots: Sequence[Fraction]) -> Polynomial:
    """Return the ``p`` with these double roots, up to a positive factor.

    Raises:
        RefusedError: they determine no function.
    """
    basis = _hermite(2 * len(roots) + 2)
    rows = [[Fraction(h[0]) for h in basis]]
    for root in roots:
        rows.append([_value(h, root) for h in basis])
        rows.append([_value([k * c for k, c in enumerate(h)][1:], root) for h in basis])
    weights = _kernel([_whole(row) for row in rows])
    size = len(basis[-1])
    p = [
        sum(w * h[k] for w, h in zip(weights, basis, strict=True) if k < len(h))
        for k in range(size)
    ]
    while not p[-1]:
        p.pop()
    common = math.gcd(*p) * (1 if p[-1] > 0 else -1)
    return [c // common for c in p]


def _roots(answer: Any) -> list[Fraction]:  # noqa: ANN401
    roots = rationals(answer, "the answer")
    if len(roots) > _MOST_ROOTS:
        raise RefusedError(f"too large: {len(roots)} double roots, at most {_MOST_ROOTS}")
    common_denominator(roots)
    for i, root in enumerate(roots):
        if root <= 0:
            raise RefusedError(f"double root {i} is not positive")
    if len(set(roots)) < len(roots):
        raise RefusedError("a double root occurs twice")
    return roots


def _hermite(count: int) -> list[Polynomial]:
    """Return ``H_0, H_4, H_8, ...`` as polynomials of the square of their argument.

    ``H_(n+1)(x) = 2 x H_n(x) - 2 n H_(n-1)(x)``. An odd ``H_n`` is stored as its quotient by ``x``,
    so that it needs a shift only when the next one is even.
    """
    before: Polynomial = []
    now: Polynomial = [1]
    found = [now]
    for n in range(4 * count - 4):
        up = [0, *now] if n % 2 else now
        down = before + [0] * (len(up) - len(before))
        before, now = now, [2 * x - 2 * n * y for x, y in zip(up, down, strict=True)]
        if n % 4 == 3:
            found.append(now)
    return found


def _value(p: Polynomial, t: Fraction) -> Fraction:
    """Return ``p(t)``, with one division at the end."""
    found = 0
    scale = 1
    for c in reversed(p):
        found = found * t.numerator + c * scale
        scale *= t.denominator
    return Fraction(found * t.denominator, scale)


def _whole(row: Sequence[Fraction]) -> list[int]:
    common = math.lcm(*(x.denominator for x in row))
    return [int(x * common) for x in row]


def _kernel(rows: list[list[int]]) -> list[int]:
    """Return a vector that each row is orthogonal to; there is one more column than rows.

    Elimination without fractions: each division has no remainder. Source: Bareiss 1968,
    doi:10.1090/S0025-5718-1968-0226829-0.

    Raises:
        RefusedError: there are several, apart from factors.
    """
    last = len(rows)
    before = 1
    for at in range(last):
        chosen = next((i for i in range(at, last) if rows[i][at]), None)
        if chosen is None:
            raise RefusedError("the double roots do not determine a function")
        rows[at], rows[chosen] = rows[chosen], rows[at]
        top = rows[at]
        pivot = top[at]
        for row in rows[at + 1 :]:
            factor = row[at]
            for k in range(at + 1, last + 1):
                row[k] = (pivot * row[k] - factor * top[k]) // before
        before = pivot
    found = [0] * last + [before]
    for at in reversed(range(last)):
        row = rows[at]
        found[at] = -sum(row[k] * found[k] for k in range(at + 1, last + 1)) // row[at]
    return found


def _divided(p: Polynomial, root: Fraction) -> Polynomial:
    """Return an integral polynomial without a common factor, divided by ``q t - r`` for its root
    ``r/q``: the quotient is integral, too (Gauss's lemma).
    """
    found = [0]
    for c in reversed(p[1:]):
        found.append((c + root.numerator * found[-1]) // root.denominator)
    assert p[0] + root.numerator * found[-1] == 0
    return found[:0:-1]


def _largest_root(p: Polynomial) -> Fraction:
    """Return a number that is at least the largest positive root, where ``p`` changes its sign, and
    less than ``2^-120`` above it.

    The interval with the root is halved, and the right half is looked at first, until Descartes'
    rule of signs proves that it has no root or one. Source: Collins and Akritas 1976,
    doi:10.1145/800205.806346.

    Raises:
        RefusedError: there is none, or another one is too near to it.
    """
    bound = 1 + max(abs(c) for c in p) // p[-1]
    size = 1 << bound.bit_length()
    # (the polynomial with the interval mapped to [0, 1], its left end, how often it was halved)
    intervals = [([c * size**k for k, c in enumerate(p)], Fraction(0), 0)]
    while intervals:
        q, left, halvings = intervals.pop()
        changes = _sign_changes(_shifted(q[::-1]))
        if changes > 1:
            if halvings == _MOST_HALVINGS:
                raise RefusedError("two roots of the function are too near to each other")
            half = [c << (len(q) - 1 - k) for k, c in enumerate(q)]
            width = Fraction(size, 2 << halvings)
            intervals.append((half, left, halvings + 1))
            intervals.append((_shifted(half), left + width, halvings + 1))
        elif changes:
            return _refined(p, left, left + Fraction(size, 1 << halvings))
        elif not q[0] and left:
            return left
    raise RefusedError("the function does not change its sign")


def _refined(p: Polynomial, left: Fraction, right: Fraction) -> Fraction:
    """Return the right end of a short interval with the only root in ``(left, right)``."""
    while right - left > Fraction(1, 1 << _PRECISION):
        middle = (left + right) / 2
        if _value(p, middle) >= 0:
            right = middle
        else:
            left = middle
    return right


def _shifted(p: Polynomial) -> Polynomial:
    """Return ``p(t + 1)``."""
    found = list(p)
    for first in range(len(p) - 1):
        for k in range(len(p) - 2, first - 1, -1):
            found[k] += found[k + 1]
    return found


def _sign_changes(p: Polynomial) -> int:
    signs = [c > 0 for c in p if c]
    return sum(a != b for a, b in pairwise(signs))


def _draw(answer: Any) -> list[str]:  # noqa: ANN401
    p = function(_roots(answer))
    steps = [_SHOWN_X * k / 200 for k in range(1, 201)]
    heights = [_value(p, Fraction(x * x)) * Fraction(math.exp(-x * x / 2)) for x in steps]
    largest = max(map(abs, heights))
    places = [
        (x / _SHOWN_X, 0.5 + 0.48 * float(y / largest)) for x, y in zip(steps, heights, strict=True)
    ]
    return [path([(0, 0.5), (1, 0.5)], 0.6), path([(0, 0.5), *places])]


def _no_double_root() -> list[str]:
    return []


PROBLEMS = (
    Problem(
        name="uncertainty",
        text="An uncertainty inequality. Let p be the combination of the Hermite polynomials H_0, "
        "H_4, ..., H_(8k+4) with p(0) = 0 that has a double root at sqrt(r) and -sqrt(r) for each of "
        "k given numbers r > 0, and that is positive at infinity. Then f(x) = p(sqrt(2 pi) x) "
        "exp(-pi x^2) is its own Fourier transform. Choose the numbers such that f(x) >= 0 for all "
        "|x| >= A with A as small as you can. The value is A^2, an upper bound of the constant of "
        "the inequality.",
        form=f"a list of at most {_MOST_ROOTS} different positive numbers r",
        goal="minimise",
        value_name="bound",
        record="0.3215872334",
        source="Georgiev et al. 2025, arXiv:2511.02864, table 3, 0.321591; the digits are of its 12 "
        "double roots; 0.32831: Cohn "
        "and Goncalves, arXiv:1712.04438; 0.3102 is announced in arXiv:2003.10771, without a "
        "function",
        verify=uncertainty,
        baseline=_no_double_root,
        draw=_draw,
    ),
)
