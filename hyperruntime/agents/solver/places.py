"""Moves of points in a box, for circles and for point sets: each makes a start of a climb.

A move takes the pool of the best answers and a size, and returns places in the unit box.
"""

import numpy as np


def scatter(kind, pool, rng, size):
    """Return uniform random places."""
    return rng.random((kind.n, kind.dimension))


def lattice(kind, pool, rng, size):
    """Return a random part of a sheared lattice, shaken a little."""
    side = int(np.ceil(kind.n ** (1 / kind.dimension))) + 1
    grid = np.stack(np.meshgrid(*[np.arange(side)] * kind.dimension), -1).reshape(
        -1, kind.dimension
    )
    grid = grid + 0.5 * rng.integers(0, 2) * (grid[:, ::-1] % 2)
    grid = grid / grid.max(axis=0)
    chosen = grid[rng.permutation(len(grid))[: kind.n]]
    return np.clip(chosen + rng.normal(0, 0.03, chosen.shape), 0, 1)


def shake(kind, pool, rng, size):
    """Shake all places of a good answer."""
    places = kind.places(pool.pick(rng))
    return np.clip(places + rng.normal(0, size, places.shape), 0, 1)


def shake_part(kind, pool, rng, size):
    """Shake the places near a random one, more strongly."""
    places = kind.places(pool.pick(rng))
    centre = places[rng.integers(len(places))]
    near = np.argsort(((places - centre) ** 2).sum(axis=1))[: rng.integers(2, 7)]
    places[near] += rng.normal(0, 3 * size, places[near].shape)
    return np.clip(places, 0, 1)


def relocate(kind, pool, rng, size):
    """Move one or two points to random places."""
    places = kind.places(pool.pick(rng))
    moved = rng.permutation(len(places))[: rng.integers(1, 3)]
    places[moved] = rng.random((len(moved), places.shape[1]))
    return np.clip(places + rng.normal(0, size / 10, places.shape), 0, 1)


def cross(kind, pool, rng, size):
    """Take one side of a line from one good answer, and the rest from another one, turned."""
    one, other = kind.places(pool.pick(rng)), kind.places(pool.pick(rng))
    for axis in range(other.shape[1]):
        if rng.random() < 0.5:
            other[:, axis] = 1 - other[:, axis]
    direction = rng.normal(size=one.shape[1])
    count = int(rng.integers(2, len(one) - 1))
    low = np.argsort(one @ direction)[:count]
    high = np.argsort(other @ direction)[count:]
    return np.concatenate([one[low], other[high]])


MOVES = {
    "scatter": scatter,
    "lattice": lattice,
    "shake": shake,
    "shake_part": shake_part,
    "relocate": relocate,
    "cross": cross,
}


def on_places(moves):
    """Return moves that give states of a kind, in place of places."""

    def on_states(move):
        return lambda kind, pool, rng, size: kind.from_places(move(kind, pool, rng, size), rng)

    return {name: on_states(move) for name, move in moves.items()}
