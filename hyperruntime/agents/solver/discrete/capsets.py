"""Cap sets: vectors modulo 3 of which no three are on a line.

The third point of the line of two points is minus their sum.
"""

from itertools import product as tuples

import numpy as np
from discrete.packing import Packing, Room, orbits

LARGEST_ORDER = 12


class Space(Room):
    """All vectors of ``n`` integers modulo 3."""

    def __init__(self, n):
        super().__init__(np.array(list(tuples(range(3), repeat=n)), dtype=np.int64))
        self.low = n // 2
        self.thirds = [third_table(n - self.low), third_table(self.low)]
        self.halves = np.divmod(np.arange(3**n), 3**self.low)

    def third(self, x, others):
        """Return the third points of the lines of ``x`` and each of the others."""
        high, low = (half[x] for half in self.halves)
        return (
            self.thirds[0][high, self.halves[0][others]] * 3**self.low
            + self.thirds[1][low, self.halves[1][others]]
        )

    def add(self, x):
        self.blocked[self.third(x, np.flatnonzero(self.chosen))] += 1
        self.chosen[x] = True

    def take(self, x):
        self.chosen[x] = False
        self.blocked[self.third(x, np.flatnonzero(self.chosen))] -= 1

    def rivals(self, x, own, rng):
        """Return one of each two points of the set that are on a line with ``x``."""
        here = np.flatnonzero(self.chosen)
        thirds = self.third(x, here)
        pairs = (here < thirds) & self.chosen[thirds]
        one, other = here[pairs], thirds[pairs]
        first = np.isin(other, own) | (~np.isin(one, own) & (rng.random(len(one)) < 0.5))
        return np.where(first, one, other)


class CapSets(Packing):
    """State: an array of the points."""

    def __init__(self, n):
        super().__init__(n, {"multiply": multiply})
        self.space = Space(n)
        self.parts = {}

    def room(self, rng, rows=None):
        return self.space

    def maps(self, room, rng):
        """Return one or two random affine maps that permute the coordinates, of a small order."""
        found = []
        for _ in range(int(rng.integers(1, 3))):
            while True:
                order = rng.permutation(self.dimension)
                signs = rng.integers(1, 3, self.dimension)
                shift = rng.integers(0, 3, self.dimension) * int(rng.integers(0, 2))
                places = room.find((room.rows[:, order] * signs + shift) % 3)
                if order_of(places) <= LARGEST_ORDER:
                    break
            found.append(places)
        return found

    def part(self, n, clock, rng):
        """Return the best cap set of a smaller dimension after one more try."""
        kind, best = self.parts.get(n) or (CapSets(n), np.zeros((0, n), dtype=np.int64))
        found = kind.improved(orbits(kind, rng, kind.size), clock, rng)
        best = found if len(found) > len(best) else best
        self.parts[n] = kind, best
        return best

    def improved(self, start, clock, rng):
        room, labels, kept = start
        if isinstance(kept, int):  # the first factor has this dimension
            one, other = self.part(kept, clock, rng), self.part(self.dimension - kept, clock, rng)
            rows = [[*a, *b] for a in one.tolist() for b in other.tolist()]
            kept = room.find(np.array(rows, dtype=np.int64).reshape(-1, self.dimension))
        return super().improved((room, labels, kept), clock, rng)


def multiply(kind, rng, size):
    """Begin with the product of two cap sets of smaller dimensions."""
    first = int(rng.integers(1, kind.dimension // 2 + 1))
    return kind.space, np.arange(len(kind.space.rows)), first


def third_table(n):
    rows = np.array(list(tuples(range(3), repeat=n)), dtype=np.int64).reshape(3**n, n)
    sums = -(rows[:, None, :] + rows[None, :, :]) % 3
    return sums @ 3 ** np.arange(n, dtype=np.int64)[::-1]


def order_of(places):
    """Return the order of a permutation; one more than the largest allowed if it is larger."""
    now = places
    for order in range(1, LARGEST_ORDER + 1):
        if (now == np.arange(len(places))).all():
            return order
        now = now[places]
    return LARGEST_ORDER + 1
