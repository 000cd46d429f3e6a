"""The uncertainty inequality: double roots whose function has its last sign change early.

The function is a combination of Laguerre polynomials, evaluated by their recurrence with a factor
that keeps them small. Its zeros are eigenvalues of a matrix (Barnett 1975, the comrade matrix).
"""

import numpy as np
from discrete.kind import Kind
from scipy.optimize import minimize

MOST = 8  # the exact check of more takes long
FARTHEST = 120.0
REAL = 1e-6  # two zeros that are nearly one may be two changes of the sign
TINY = 1e-300
CLOSEST = 0.05
DIGITS = 8
STEPS = 20


class Uncertainty(Kind):
    """State: the double roots, ascending."""

    size = 0.03

    def __init__(self):
        self.starts, self.changes = STARTS, CHANGES
        super().__init__()

    def merit(self, roots):
        return -bound(roots)

    def load(self, answer):
        return np.array(answer, dtype=float)

    def answer(self, roots):
        return [round(root, DIGITS) for root in roots.tolist()]

    def improved(self, roots, clock, rng):
        """Return roots from the simplex method of Nelder and Mead, which needs no slopes."""
        options = {"maxiter": STEPS * len(roots), "xatol": 1e-9, "fatol": 1e-11}
        done = minimize(
            lambda x: FARTHEST if clock.over() else bound(tidy(x)),
            tidy(roots),
            method="Nelder-Mead",
            options=options,
        )
        roots = tidy(done.x)
        return np.round(roots, DIGITS)


def tidy(roots):
    """Return roots that are positive, ascending and not too near to each other."""
    roots = np.clip(np.sort(np.abs(roots)), CLOSEST, FARTHEST / 3)
    for k in range(1, len(roots)):
        roots[k] = max(roots[k], roots[k - 1] + CLOSEST)
    return roots


def laguerre(t, count):
    """Return every second Laguerre polynomial of the order -1/2 at ``t``, times ``exp(-t / 2)``.

    Args:
        t: (n,) numbers.
        count: how many polynomials, of the degrees 0, 2, 4, ...

    Returns:
        An array (count, 2, n): their values, and their slopes times the same factor.
    """
    found = np.zeros((2 * count, 2, len(t)))
    found[0, 0] = np.exp(-t / 2)
    found[1] = (0.5 - t) * found[0, 0], -found[0, 0]
    for k in range(1, 2 * count - 2):
        found[k + 1] = (2 * k + 0.5 - t) * found[k] - (k - 0.5) * found[k - 1]
        found[k + 1, 1] -= found[k, 0]
        found[k + 1] /= k + 1
    return found[: 2 * count - 1 : 2]


def bound(roots):
    """Return the square of the last sign change's place, as the inequality measures it."""
    count = 2 * len(roots) + 2
    known = laguerre(np.append(roots, 0.0), count)
    rows = np.hstack([known[:, 0], known[:, 1, :-1]]).T
    rows = rows / np.abs(rows).max(axis=1, keepdims=True)
    others = zeros(np.linalg.svd(rows)[2][-1])
    for root in (*roots, *roots):
        others = np.delete(others, np.argmin(np.abs(others - root)))
    real = others.real[np.abs(others.imag) < REAL * np.abs(others)]
    return float(max(real, default=FARTHEST)) / (2 * np.pi)


def zeros(weights):
    """Return the zeros of a combination of every second Laguerre polynomial of the order -1/2.

    They are the eigenvalues of the matrix of the multiplication by ``t``, modulo the combination.
    """
    degree = 2 * len(weights) - 2
    k = np.arange(degree, dtype=float)
    matrix = np.diag(2 * k + 0.5) - np.diag(k[1:], 1) - np.diag(k[1:] - 0.5, -1)
    matrix[-1, ::2] += degree * weights[:-1] / (weights[-1] or TINY)
    return np.linalg.eigvals(matrix)


def spread(kind, rng, size):
    """Return one to four roots at random places."""
    return np.sort(rng.uniform(1.0, 20.0, int(rng.integers(1, 5))))


def regular(kind, rng, size):
    """Return roots whose distances grow slowly."""
    count = int(rng.integers(1, MOST + 1))
    return rng.uniform(2, 6) + rng.uniform(1.0, 5.0) * np.arange(count) ** rng.uniform(1.0, 1.3)


def shake(kind, roots, rng, size):
    """Move all roots of a good answer a little."""
    return roots * np.exp(rng.normal(0, size, len(roots)))


def extend(kind, roots, rng, size):
    """Give a good answer one more root, mostly after the last one."""
    if len(roots) >= MOST:
        return shake(kind, roots, rng, size)
    gap = roots[-1] - roots[-2] if len(roots) > 1 else 4.0
    new = roots[-1] + gap * rng.uniform(0.5, 2) if rng.random() < 0.7 else rng.uniform(1, 20)
    return np.sort(np.append(roots, new))


STARTS = {"spread": spread, "regular": regular}
CHANGES = {"shake": shake, "extend": extend}
