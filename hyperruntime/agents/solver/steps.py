"""Step functions whose autoconvolution or overlap is small (or flat): heights of equal steps."""

import numpy as np
from climb import climb

MOST = 240


class Steps:
    """State: the heights, with the mean ``mean``. Subclasses say what is measured."""

    size = 0.2
    reach = 0.2
    hope = 20.0
    lowest = 0.0
    highest = np.inf
    mean = 1.0

    def __init__(self):
        self.starts = STARTS
        self.moves = MOVES

    def improve(self, x, clock, aim):
        return climb(self, x, clock, aim)

    def settle(self, x):
        """Return heights in their bounds, with the right mean."""
        x = np.clip(x, self.lowest, self.highest)
        for _ in range(20):
            if abs(x.mean() - self.mean) < 1e-15:
                break
            x = np.clip(x * (self.mean / x.mean()), self.lowest, self.highest)
        return x

    def moved(self, x, step):
        return self.settle(x + step[: len(x)])

    def merit(self, x):
        return float(self.values(x).min())

    def program(self, x, reach):
        """Return the program of a step that makes the smallest value large and keeps the mean."""
        n = len(x)
        values = self.values(x)
        slopes = self.slopes(x)
        least = values.min()
        near = values - least <= reach * np.abs(slopes).sum(axis=1)
        rows = np.hstack([-slopes[near], np.ones((near.sum(), 1))])
        rows = np.vstack([rows, np.r_[np.ones(n), 0.0], np.r_[-np.ones(n), 0.0]])
        limits = np.r_[values[near] - least, 0.0, 0.0]
        low = np.maximum(-reach, self.lowest - x)
        bounds = np.vstack(
            [np.stack([low, np.maximum(low, np.minimum(reach, self.highest - x))], 1), [0, np.inf]]
        )
        return np.r_[np.zeros(n), 1.0], rows, limits, bounds

    def load(self, answer):
        return self.settle(np.array(answer, dtype=float))

    def answer(self, x):
        return x.tolist()


class Autocorrelation(Steps):
    """The largest value of ``f * f``, or of its size if heights may be negative, is small."""

    def __init__(self, signed):
        super().__init__()
        self.signed = signed
        self.lowest = -np.inf if signed else 0.0

    def values(self, x):
        sums = -2 * np.convolve(x, x) / (len(x) * x.mean() ** 2)
        return np.r_[sums, -sums] if self.signed else sums

    def slopes(self, x):
        slopes = -4 * _shifts(x) / len(x)
        return np.vstack([slopes, -slopes]) if self.signed else slopes

    def settle(self, x):
        return x / x.mean() if self.signed else super().settle(x)


class Flat(Steps):
    """The square of ``f * f`` is large beside its largest value: a product, so the program
    maximises the slope of its logarithm while the largest value does not grow.
    """

    def merit(self, x):
        sums = np.r_[0.0, np.convolve(x, x), 0.0]
        return float(_square(sums) / (3 * x.sum() ** 2 * sums.max()))

    def program(self, x, reach):
        n = len(x)
        sums = np.r_[0.0, np.convolve(x, x), 0.0]
        shifts = 2 * _shifts(x)
        slope = 2 * sums[1:-1] * 2 + sums[:-2] + sums[2:]
        merit = self.merit(x)
        gain = merit * (slope @ shifts) / _square(sums)
        top = sums.max()
        room = top - sums[1:-1]
        near = room <= reach * np.abs(shifts).sum(axis=1)
        rows = np.hstack([shifts[near], -np.ones((near.sum(), 1))])
        rows = np.vstack([rows, np.r_[np.ones(n), 0.0], np.r_[-np.ones(n), 0.0]])
        low = np.maximum(-reach, -x)
        bounds = np.vstack([np.stack([low, np.full(n, reach)], 1), [-top / 2, top]])
        return np.r_[gain, -merit / top], rows, np.r_[room[near], 0.0, 0.0], bounds


class Overlap(Steps):
    """The largest overlap of a function from [-1, 1] to [0, 1] with the integral 1 is small."""

    highest = 1.0
    mean = 0.5

    def values(self, x):
        return -2 * np.convolve(x, 1 - x[::-1]) / len(x)

    def slopes(self, x):
        return -2 * (_shifts(1 - x[::-1]) - _shifts(x)[:, ::-1]) / len(x)

    def answer(self, x):
        """Return heights of which none is above 1 in exact arithmetic when the integral is 1."""
        while (len(x) * x.max()) > 2 * x.sum() * (1 - 1e-15):
            x = np.minimum(x, 2 * x.mean() * (1 - 1e-14))
        return x.tolist()


def _shifts(x):
    """Return the matrix whose product with ``d`` is the convolution of ``x`` and ``d``."""
    n = len(x)
    matrix = np.zeros((2 * n - 1, n))
    for k in range(n):
        matrix[k : k + n, k] = x
    return matrix


def _square(sums):
    return float(sums[:-1] @ sums[:-1] + sums[:-1] @ sums[1:] + sums[1:] @ sums[1:])


def bumps(kind, pool, rng, size):
    """Return a few random bumps on a random level, of 20 to 60 steps."""
    n = int(rng.integers(20, 61))
    places = np.linspace(0, 1, n)
    x = np.full(n, rng.uniform(0.2, 1.0))
    for _ in range(rng.integers(1, 5)):
        x += rng.uniform(0, 2) * np.exp(-(((places - rng.random()) / rng.uniform(0.05, 0.3)) ** 2))
    return kind.settle(x * kind.mean / x.mean())


def rough(kind, pool, rng, size):
    """Return independent random heights, of 20 to 60 steps."""
    n = int(rng.integers(20, 61))
    return kind.settle(rng.gamma(1.0, 1.0, n) * kind.mean)


def noise(kind, pool, rng, size):
    """Multiply the heights of the chain's answer by random factors."""
    x = pool.pick()
    return kind.settle(x * np.exp(rng.normal(0, size, len(x))))


def noise_part(kind, pool, rng, size):
    """Change a random range of the heights of the chain's answer."""
    x = pool.pick()
    first = int(rng.integers(len(x)))
    last = first + int(rng.integers(1, 2 + len(x) // 4))
    x[first:last] += rng.normal(0, 2 * size, len(x[first:last])) * kind.mean
    return kind.settle(x)


def refine(kind, pool, rng, size):
    """Return the chain's answer with more steps."""
    x = pool.pick()
    n = min(MOST, int(len(x) * rng.choice([1.25, 1.5, 2.0])))
    places = (np.arange(n) + 0.5) * len(x) / n - 0.5
    return kind.settle(np.interp(places, np.arange(len(x)), x))


def cross(kind, pool, rng, size):
    """Return a mean of the chain's answer and a good one, which is perhaps turned."""
    one, other = pool.pick(), pool.other(rng)
    other = np.interp(np.linspace(0, 1, len(one)), np.linspace(0, 1, len(other)), other)
    share = rng.uniform(0, 0.5)
    return kind.settle(one * (1 - share) + share * (other[::-1] if rng.random() < 0.5 else other))


STARTS = {"bumps": bumps, "rough": rough}
MOVES = {
    "noise": noise,
    "noise_part": noise_part,
    "refine": refine,
    "cross": cross,
}
