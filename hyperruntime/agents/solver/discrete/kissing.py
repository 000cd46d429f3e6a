"""Kissing configurations: short vectors of integers of one length, 60 degrees apart or more."""

from itertools import combinations
from itertools import product as tuples

import numpy as np
from discrete.packing import Packing, Room

NORMS = (2, 2, 3, 4, 4)  # squares of lengths: 2 is good in low dimensions, 4 in high ones


class Shell(Room):
    """All vectors of integers with one length."""

    def __init__(self, dimension, norm):
        super().__init__(vectors(dimension, norm))
        self.norm = norm
        self.near = {}

    def neighbours(self, x):
        """Return the vectors at less than 60 degrees, without ``x``."""
        if x not in self.near:
            close = np.flatnonzero(2 * (self.rows @ self.rows[x]) > self.norm)
            self.near[x] = close[close != x]
        return self.near[x]

    def add(self, x):
        self.blocked[self.neighbours(x)] += 1
        self.chosen[x] = True

    def take(self, x):
        self.blocked[self.neighbours(x)] -= 1
        self.chosen[x] = False

    def rivals(self, x, own, rng):
        near = self.neighbours(x)
        return near[self.chosen[near]]


class Kissing(Packing):
    """State: an array of the vectors."""

    def __init__(self, dimension):
        super().__init__(dimension)
        self.shells = {}

    def room(self, rng, rows=None):
        norm = int((rows[0] ** 2).sum()) if rows is not None else int(rng.choice(NORMS))
        if norm not in self.shells:
            self.shells[norm] = Shell(self.dimension, norm)
        return self.shells[norm]

    def maps(self, room, rng):
        """Return the changes of all signs, of two signs or of none, and perhaps a permutation."""
        rows, d = room.rows, self.dimension
        flips = [np.where(np.arange(d) == k, -1, 1) for k in range(d)]
        choice = int(rng.integers(3))
        if choice == 1:
            flips = [flips[k] * flips[k + 1] for k in range(d - 1)]
        elif choice == 2:
            flips = [-np.ones(d, dtype=int)]
        found = [room.find(rows * flip) for flip in flips]
        if rng.random() < 0.7:
            turned = np.arange(d)
            length = int(rng.integers(2, d + 1))
            turned[:length] = np.roll(turned[:length], 1)
            count = length * (d // length)
            if rng.random() < 0.5:  # more cycles of the length
                turned[:count] = np.roll(np.arange(count).reshape(-1, length), 1, axis=1).ravel()
            found.append(room.find(rows[:, turned]))
        return found


def vectors(dimension, norm):
    """Return the vectors of integers whose squares have this sum, at most 4."""
    shapes = {(1,) * norm, (2,)} if norm == 4 else {(1,) * norm}
    rows = []
    for shape in sorted(shapes):
        for places in combinations(range(dimension), len(shape)):
            for signs in tuples((1, -1), repeat=len(shape)):
                row = [0] * dimension
                for place, sign, entry in zip(places, signs, shape, strict=True):
                    row[place] = sign * entry
                rows.append(row)
    return np.array(rows, dtype=np.int64)
