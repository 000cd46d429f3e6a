"""Starts and moves of points in a box, for circles and for point sets: each begins a climb.

A move takes the pool of answers and a size, and returns places in the unit box. A start needs no
answers.
"""

import numpy as np

SPREAD = 20
SOFT = 50.0
EMPTIEST = 60


def scatter(kind, pool, rng, size):
    """Return uniform random places."""
    return rng.random((kind.n, kind.dimension))


def spread(kind, pool, rng, size):
    """Return random places that repelled each other for a while."""
    places = rng.random((kind.n, kind.dimension))
    for round_ in range(SPREAD):
        gaps = places[:, None] - places
        squares = (gaps**2).sum(axis=2) + np.eye(kind.n)
        pushes = (gaps / squares[:, :, None] ** 2).sum(axis=1)
        pushes += np.maximum(2 * places, 0.02) ** -3.0 - np.maximum(2 - 2 * places, 0.02) ** -3.0
        far = np.maximum(np.linalg.norm(pushes, axis=1, keepdims=True), SOFT)
        places = np.clip(places + 0.05 * (1 - round_ / SPREAD) * pushes / far, 0.02, 0.98)
    return places


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
    """Shake all places of the chain's answer."""
    places = kind.places(pool.pick())
    return np.clip(places + rng.normal(0, size, places.shape), 0, 1)


def shake_part(kind, pool, rng, size):
    """Shake the places near a random one, more strongly."""
    places = kind.places(pool.pick())
    centre = places[rng.integers(len(places))]
    near = np.argsort(((places - centre) ** 2).sum(axis=1))[: rng.integers(2, 7)]
    places[near] += rng.normal(0, 3 * size, places[near].shape)
    return np.clip(places, 0, 1)


def relocate(kind, pool, rng, size):
    """Move up to three points: each to a random place, or to the emptiest one of many."""
    places = kind.places(pool.pick())
    for moved in rng.permutation(len(places))[: rng.integers(1, 4)]:
        found = rng.random((int(rng.choice([1, EMPTIEST])), places.shape[1]))
        rest = np.delete(places, moved, axis=0)
        gaps = ((found[:, None] - rest) ** 2).sum(axis=2).min(axis=1)
        places[moved] = found[gaps.argmax()]
    return np.clip(places + rng.normal(0, size / 10, places.shape), 0, 1)


def cross(kind, pool, rng, size):
    """Take one side of a line from the chain's answer, and the rest from a good one, turned."""
    one, other = kind.places(pool.pick()), kind.places(pool.other(rng))
    for axis in range(other.shape[1]):
        if rng.random() < 0.5:
            other[:, axis] = 1 - other[:, axis]
    direction = rng.normal(size=one.shape[1])
    count = int(rng.integers(2, len(one) - 1))
    low = np.argsort(one @ direction)[:count]
    high = np.argsort(other @ direction)[count:]
    return np.concatenate([one[low], other[high]])


STARTS = {"scatter": scatter, "spread": spread, "lattice": lattice}
MOVES = {
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
