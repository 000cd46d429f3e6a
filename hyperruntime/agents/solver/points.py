"""Points whose smallest triangle is large, or whose distances are nearly equal."""

from itertools import combinations

import numpy as np
from climb import climb, minimum_program
from places import MOVES, STARTS, on_places


class Points:
    """State: ``n`` rows of coordinates, flat. Subclasses say what is measured."""

    starts = on_places(STARTS)
    moves = on_places(MOVES)
    size = 0.05
    reach = 0.2
    hope = 20.0
    dimension = 2

    def __init__(self, n):
        self.n = n

    def improve(self, x, clock, aim):
        return climb(self, x, clock, aim)

    def moved(self, x, step):
        return self.settle(x + step[:-1])

    def settle(self, x):
        return x

    def rows(self, x):
        return x.reshape(self.n, self.dimension)

    def places(self, x):
        return self.rows(x).copy()

    def from_places(self, places, rng):
        return places.ravel()

    def load(self, answer):
        return self.settle(np.array(answer, dtype=float).ravel())

    def answer(self, x):
        return self.rows(x).tolist()


class Triangles(Points):
    """The smallest triangle of points in a triangle."""

    def __init__(self, n):
        super().__init__(n)
        self.triples = np.array(list(combinations(range(n), 3))).T

    def areas(self, x):
        """Return twice the signed area of each triangle, and the points of the corners."""
        a, b, c = (self.rows(x)[k] for k in self.triples)
        areas = (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (
            c[:, 0] - a[:, 0]
        )
        return areas, (a, b, c)

    def merit(self, x):
        return float(np.abs(self.areas(x)[0]).min())

    def settle(self, x):
        """Return the points, moved into the triangle with the corners (0, 0), (1, 0) and (0, 1)."""
        rows = np.clip(self.rows(x), 0.0, 1.0)
        over = rows.sum(axis=1) >= 1
        rows[over, 0] = (1 + rows[over, 0] - rows[over, 1]) / 2
        rows[over, 1] = np.maximum(0.0, 1 - rows[over, 0] - 2**-53)  # the exact sum is at most 1
        return rows.ravel()

    def from_places(self, places, rng):
        """Return points of the square, folded into the triangle."""
        over = places.sum(axis=1) > 1
        places[over] = 1 - places[over][:, ::-1]
        return places.ravel()

    def program(self, x, reach):
        areas, corners = self.areas(x)
        slopes = self.slopes(areas, corners)
        return minimum_program(np.abs(areas), slopes, self.region(x), reach, len(x))

    def slopes(self, areas, corners):
        a, b, c = corners
        sign = np.sign(areas)
        slopes = np.zeros((len(areas), 2 * self.n))
        each = np.arange(len(areas))
        for place, (p, q) in zip(self.triples, ((b, c), (c, a), (a, b)), strict=True):
            slopes[each, 2 * place] = sign * (p[:, 1] - q[:, 1])
            slopes[each, 2 * place + 1] = sign * (q[:, 0] - p[:, 0])
        return slopes

    def region(self, x):
        """Return the linear limits that keep the points in the triangle."""
        rows = self.rows(x)
        each = np.eye(2 * self.n)
        return (
            np.concatenate([-each, each[::2] + each[1::2]]),
            np.concatenate([x, 1 - rows.sum(axis=1)]),
        )


class Convex(Triangles):
    """The smallest triangle of points as a part of their convex hull, which has the area 1/2."""

    def settle(self, x):
        rows = self.rows(x)
        area = _doubled_area(rows[_hull(rows)])
        return ((rows - rows.mean(axis=0)) / np.sqrt(max(area, 1e-12))).ravel()

    def places(self, x):
        rows = self.rows(x)
        low = rows.min(axis=0)
        return (rows - low) / (rows.max(axis=0) - low)

    def from_places(self, places, rng):
        return self.settle(places.ravel())

    def merit(self, x):
        rows = self.rows(x)
        return super().merit(x) / max(_doubled_area(rows[_hull(rows)]), 1e-12)

    def region(self, x):
        """Return the linear limit that keeps the area of the hull."""
        rows = self.rows(x)
        hull = _hull(rows)
        before, after = rows[np.roll(hull, 1)], rows[np.roll(hull, -1)]
        slope = np.zeros(2 * self.n)
        slope[2 * hull] = after[:, 1] - before[:, 1]
        slope[2 * hull + 1] = before[:, 0] - after[:, 0]
        return slope[None, :], np.array([1 - _doubled_area(rows[hull])])


class Ratio(Points):
    """Points whose largest distance is small beside the smallest one; the largest one is 1."""

    hope = 4.0

    def __init__(self, n, dimension):
        super().__init__(n)
        self.dimension = dimension
        self.pairs = np.triu_indices(n, 1)

    def gaps(self, x):
        rows = self.rows(x)
        return rows[self.pairs[0]] - rows[self.pairs[1]]

    def settle(self, x):
        squares = (self.gaps(x) ** 2).sum(axis=1)
        rows = self.rows(x) / np.sqrt(squares.max())
        return (rows - rows.min(axis=0)).ravel()

    def places(self, x):
        rows = self.rows(x)
        return rows / rows.max(axis=0)

    def from_places(self, places, rng):
        return self.settle(places.ravel())

    def merit(self, x):
        squares = (self.gaps(x) ** 2).sum(axis=1)
        return float(squares.min() / squares.max())

    def program(self, x, reach):
        gaps = self.gaps(x)
        squares = (gaps**2).sum(axis=1)
        slopes = np.zeros((len(gaps), len(x)))
        each = np.arange(len(gaps))
        for axis in range(self.dimension):
            slopes[each, self.dimension * self.pairs[0] + axis] = 2 * gaps[:, axis]
            slopes[each, self.dimension * self.pairs[1] + axis] = -2 * gaps[:, axis]
        long = 1 - squares <= reach * np.abs(slopes).sum(axis=1)
        return minimum_program(squares, slopes, (slopes[long], 1 - squares[long]), reach, len(x))


def _hull(rows):
    """Return the places of the corners of the convex hull, counter-clockwise."""
    order = np.lexsort((rows[:, 1], rows[:, 0])).tolist()
    points = rows.tolist()
    found = []
    for direction in (order, order[::-1]):
        chain = []
        for k in direction:
            while len(chain) > 1 and _turn(points[chain[-2]], points[chain[-1]], points[k]) <= 0:
                chain.pop()
            chain.append(k)
        found += chain[:-1]
    return np.array(found)


def _turn(a, b, c):
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _doubled_area(corners):
    x, y = corners.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1))
