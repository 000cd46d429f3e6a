"""Large sets of points in which some do not fit together: cap sets and kissing configurations.

A set grows by whole orbits of a random group, so that it keeps the group's symmetry. Then orbits
are put in by force: those that do not fit are taken out, and others may find room.
"""

import numpy as np
from discrete.kind import Kind

PATIENCE = 120
SAMPLE = 24


class Room:
    """All points of a problem, and a set of them that fit together.

    Attributes:
        rows: (points, dimension) integers.
        chosen: (points,) whether a point is in the set.
        blocked: (points,) how often a point is excluded by the set.

    Subclasses have ``add(x)`` and ``take(x)``, which keep ``blocked`` right. They have
    ``rivals(x, own, rng)``: points of the set without which ``x`` fits, others than ``own`` if
    possible.
    """

    def __init__(self, rows):
        self.rows = rows
        self.clear()

    def clear(self):
        self.chosen = np.zeros(len(self.rows), dtype=bool)
        self.blocked = np.zeros(len(self.rows), dtype=np.int32)

    def keys(self, rows):
        """Return a number for each row, different for different rows."""
        base = 2 * int(np.abs(self.rows).max()) + 1
        return (rows + base // 2) @ base ** np.arange(self.rows.shape[1], dtype=np.int64)

    def find(self, rows):
        """Return the places of rows among the points; those that are none are left out."""
        known = self.keys(self.rows)
        order = np.argsort(known)
        wanted = self.keys(rows)
        places = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(order) - 1)]
        return places[known[places] == wanted]


def orbits_of(maps, count):
    """Return the number of each point's orbit under maps, which are permutations of the points."""
    labels = np.arange(count)
    changed = True
    while changed:
        before = labels.copy()
        for places in maps:
            np.minimum.at(labels, places, labels.copy())
            labels = np.minimum(labels, labels[places])
        changed = bool((before != labels).any())
    return np.unique(labels, return_inverse=True)[1]


class Packing(Kind):
    """State: an array of the set's points, (size, dimension).

    Subclasses have ``room(rng, rows=None)``, the points to choose from, and ``maps(room, rng)``,
    the generators of a random group.
    """

    size = 0.3

    def __init__(self, dimension, more_starts=()):
        self.dimension = dimension
        self.starts = {**STARTS, **dict(more_starts)}
        self.changes = CHANGES
        super().__init__()

    def merit(self, rows):
        return float(len(rows))

    def load(self, answer):
        return np.array(answer, dtype=np.int64)

    def answer(self, rows):
        return rows.tolist()

    def improved(self, start, clock, rng):
        """Return a set that grew from the points of a start, orbit by orbit."""
        room, labels, kept = start
        room.clear()
        order = np.argsort(labels, kind="stable")
        orbits = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
        grower = Grower(room, labels, orbits, rng)
        for label in np.unique(labels[kept]).tolist():
            grower.put(label, force=False)
        grower.fill(clock)
        tries = 0
        while tries < PATIENCE and not clock.over():
            tries = 0 if grower.swap(clock) else tries + 1
        if not room.chosen.any():
            room.add(0)
        return room.rows[room.chosen]


class Grower:
    """Puts orbits into a set and takes them out."""

    def __init__(self, room, labels, orbits, rng):
        self.room = room
        self.labels = labels
        self.orbits = orbits
        self.rng = rng
        self.first = np.array([orbit[0] for orbit in orbits])
        self.alone = np.zeros(len(orbits), dtype=bool)  # does not even fit with itself
        self.turn = np.zeros(len(orbits), dtype=np.int64)
        self.now = 0

    def put(self, label, *, force):
        """Put an orbit in, by force also if others must be taken out; return whether it is in."""
        room, added = self.room, []
        for x in self.orbits[label].tolist():
            if room.blocked[x]:
                rivals = set(self.labels[room.rivals(x, added, self.rng)].tolist())
                self.alone[label] |= label in rivals
                if label in rivals or not force:
                    for y in added:
                        room.take(y)
                    return False
                for other in rivals:
                    self.out(other)
            room.add(x)
            added.append(x)
        return True

    def out(self, label):
        self.turn[label] = self.now
        for y in self.orbits[label].tolist():
            if self.room.chosen[y]:
                self.room.take(y)

    def fill(self, clock):
        """Put in random orbits that fit, until none does."""
        free = np.flatnonzero((self.room.blocked == 0) & ~self.room.chosen)
        for label in self.rng.permutation(np.unique(self.labels[free])).tolist():
            if clock.over():
                return
            if not self.room.blocked[self.first[label]] and not self.alone[label]:
                self.put(label, force=False)

    def swap(self, clock):
        """Put in an orbit by force, and return whether the set is larger; undo it if smaller."""
        room = self.room
        self.now += 1
        outside = np.flatnonzero(~room.chosen[self.first] & ~self.alone)
        if not len(outside):
            return False
        some = outside[self.rng.integers(0, len(outside), SAMPLE)]
        cost = room.blocked[self.first[some]] + 10.0 * (self.turn[some] > self.now - 10)
        label = int(some[np.argmin(cost + self.rng.random(SAMPLE))])
        before = room.chosen.copy(), room.blocked.copy()
        count = np.count_nonzero(room.chosen)
        if self.put(label, force=True):
            self.turn[label] = self.now
            self.fill(clock)
            gain = np.count_nonzero(room.chosen) - count
            if gain >= 0:
                return gain > 0
        room.chosen, room.blocked = before
        return False


def scatter(kind, rng, size):
    """Begin with nothing, and without symmetry."""
    room = kind.room(rng)
    return room, np.arange(len(room.rows)), np.array([], dtype=int)


def orbits(kind, rng, size):
    """Begin with nothing, and keep the symmetry of a random group."""
    room = kind.room(rng)
    labels = orbits_of(kind.maps(room, rng), len(room.rows))
    return room, labels, np.array([], dtype=int)


def regrow(kind, rows, rng, size):
    """Take random points of a good set out."""
    room = kind.room(rng, rows)
    places = room.find(rows)
    kept = places[rng.random(len(places)) > min(0.9, size)]
    return room, np.arange(len(room.rows)), kept


def carve(kind, rows, rng, size):
    """Take the points of a good set on one side of a random plane out."""
    room = kind.room(rng, rows)
    side = rows @ rng.normal(size=rows.shape[1])
    kept = rows[np.argsort(side)[: int(len(rows) * (1 - min(0.9, size)))]]
    return room, np.arange(len(room.rows)), room.find(kept)


def symmetrise(kind, rows, rng, size):
    """Keep the whole orbits of a random group in a good set, but for a random part."""
    room = kind.room(rng, rows)
    labels = orbits_of(kind.maps(room, rng), len(room.rows))
    places = room.find(rows)
    whole = np.bincount(labels[places], minlength=labels.max() + 1) == np.bincount(labels)
    kept = places[whole[labels[places]]]
    chance = rng.random(labels.max() + 1) > min(0.9, size)
    return room, labels, kept[chance[labels[kept]]]


STARTS = {"scatter": scatter, "orbits": orbits}
CHANGES = {"regrow": regrow, "carve": carve, "symmetrise": symmetrise}
