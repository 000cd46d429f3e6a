"""Circles in a square, or in a rectangle of perimeter 4, with the largest sum of radii."""

from fractions import Fraction

import numpy as np
from climb import climb
from places import MOVES, STARTS, on_places
from scipy.sparse import csr_matrix


class Circles:
    """State: ``n`` x, ``n`` y, ``n`` radii, and the width; the height is 2 minus the width."""

    starts = on_places(STARTS)
    moves = on_places(MOVES)
    dimension = 2
    size = 0.05
    reach = 0.1
    hope = 2.0

    def __init__(self, n, square):
        self.n = n
        self.square = square
        self.pairs = np.triu_indices(n, 1)

    def improve(self, x, clock, aim):
        return climb(self, x, clock, aim)

    def places(self, x):
        return x[: 2 * self.n].reshape(2, self.n).T / (x[-1], 2 - x[-1])

    def from_places(self, places, rng):
        """Return circles that end halfway to the next centre."""
        width = 1.0 if self.square else rng.uniform(0.7, 1.0)
        xs, ys = (places * (width, 2 - width)).T
        gaps = np.hypot(xs[:, None] - xs, ys[:, None] - ys) + 4 * np.eye(self.n)
        radii = np.minimum.reduce([gaps.min(axis=0) / 2, xs, ys, width - xs, 2 - width - ys])
        return np.concatenate([xs, ys, radii, [width]])

    def settle(self, x):
        return x

    def merit(self, x):
        """Return the sum of the radii, less a penalty for the worst overlap."""
        xs, ys, rs = x[:-1].reshape(3, self.n)
        i, j = self.pairs
        overlap = (rs[i] + rs[j] - np.hypot(xs[i] - xs[j], ys[i] - ys[j])).max()
        wall = (rs - np.minimum.reduce([xs, ys, x[-1] - xs, 2 - x[-1] - ys])).max()
        return float(rs.sum() - self.n * max(0.0, overlap, wall))

    def moved(self, x, step):
        new = x + step
        low, high = np.zeros(self.n), np.ones(self.n)
        new[: self.n] = np.clip(new[: self.n], low, high * new[-1])
        new[self.n : 2 * self.n] = np.clip(new[self.n : 2 * self.n], low, high * (2 - new[-1]))
        return new

    def program(self, x, reach):
        """Return the linear program of a step: pairs that may touch, and walls."""
        n = self.n
        xs, ys, rs = x[:-1].reshape(3, n)
        i, j = self.pairs
        dx, dy = xs[i] - xs[j], ys[i] - ys[j]
        apart = np.hypot(dx, dy)
        near = apart - rs[i] - rs[j] < 4 * reach
        i, j, apart = i[near], j[near], np.maximum(apart[near], 1e-12)
        ux, uy, one = dx[near] / apart, dy[near] / apart, np.ones(len(i))
        count, each, ones = len(i), np.arange(n), np.ones(n)
        pair, last = np.arange(count), np.full(n, 3 * n)
        wall = [count + k * n + each for k in range(4)]
        entries = [
            (pair, i, -ux), (pair, j, ux), (pair, n + i, -uy), (pair, n + j, uy),
            (pair, 2 * n + i, one), (pair, 2 * n + j, one),
            (wall[0], each, -ones), (wall[1], n + each, -ones),
            (wall[2], each, ones), (wall[2], last, -ones),
            (wall[3], n + each, ones), (wall[3], last, ones),
            *((rows, 2 * n + each, ones) for rows in wall),
        ]  # fmt: skip
        rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
        matrix = csr_matrix((values, (rows, columns)), shape=(count + 4 * n, 3 * n + 1))
        limits = [apart - rs[i] - rs[j], xs - rs, ys - rs, x[-1] - xs - rs, 2 - x[-1] - ys - rs]
        bounds = np.full((3 * n + 1, 2), (-reach, reach))
        bounds[2 * n : 3 * n, 0], bounds[2 * n : 3 * n, 1] = -rs, reach
        bounds[3 * n] = (0.0, 0.0) if self.square else (-reach, reach)
        gain = np.zeros(3 * n + 1)
        gain[2 * n : 3 * n] = 1.0
        return gain, matrix, np.concatenate(limits), bounds

    def load(self, answer):
        circles = np.array(answer, dtype=float)
        width = 1.0 if self.square else float((circles[:, 0] + circles[:, 2]).max())
        return np.concatenate([circles.T.ravel(), [width]])

    def answer(self, x):
        """Return circles that are disjoint in exact arithmetic: the radii shrink by a hair."""
        circles = x[:-1].reshape(3, self.n).T
        margin = 1e-15 + max(0.0, float(circles[:, 2].sum()) - self.merit(x)) / self.n
        while True:
            found = [[a, b, max(0.0, r - margin)] for a, b, r in circles.tolist()]
            if _fits([[Fraction(v) for v in circle] for circle in found], Fraction(x[-1])):
                return found
            margin *= 2


def _fits(circles, width):
    for k, (x, y, r) in enumerate(circles):
        if x < r or y < r or x + r > width or y + r > 2 - width:
            return False
        for u, v, s in circles[:k]:
            if (x - u) ** 2 + (y - v) ** 2 < (r + s) ** 2:
                return False
    return True
