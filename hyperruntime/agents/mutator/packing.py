"""Pack n circles into the unit square so that the sum of their radii is large.

This is the program that evolves. The meta agent edits the marked blocks and the line that lists the
stages; the frame below them stays. Centres are two lists, radii a third one, all of the same
length.
"""

# ruff: noqa: B905

import math
import random

from budget import Budget

# block: seed grid
GRID_JITTER = 0.0


def seed(n, rng):
    """Fill a square grid row by row."""
    side = math.ceil(math.sqrt(n))
    xs = [(i % side + 0.5) / side + rng.gauss(0, GRID_JITTER) for i in range(n)]
    ys = [(i // side + 0.5) / side + rng.gauss(0, GRID_JITTER) for i in range(n)]
    return xs, ys


# end


# block: radii greedy
def radii(xs, ys, budget):
    """Start from half the way to the nearest neighbour, then let each circle in turn grow."""
    n = len(xs)
    budget.spend(2 * n * n)
    gaps = [[math.hypot(x - u, y - v) for u, v in zip(xs, ys)] for x, y in zip(xs, ys)]
    walls = [min(x, y, 1 - x, 1 - y) for x, y in zip(xs, ys)]
    half = [
        min((gap for j, gap in enumerate(row) if j != i), default=2) / 2
        for i, row in enumerate(gaps)
    ]
    rs = [min(pair) for pair in zip(half, walls)]
    for i, row in enumerate(gaps):
        rs[i] = min(walls[i], 1.0, *(gap - rs[j] for j, gap in enumerate(row) if j != i))
    return rs


# end


# block: search once
def search(n, rng, budget):
    """Try once."""
    xs, ys = seed(n, rng)
    return attempt(xs, ys, [START / math.sqrt(n)] * n, rng, budget)


# end


STAGES = ()

# frame: everything below is the same in every generation

START = 0.15


def inside(values):
    return [min(1.0, max(0.0, value)) for value in values]


def attempt(xs, ys, rs, rng, budget):
    """Run the stages, then give the centres their radii; returns (sum of radii, xs, ys, radii)."""
    for stage in STAGES:
        xs, ys, rs = stage(xs, ys, rs, rng, budget)
        xs, ys, rs = inside(xs), inside(ys), inside(rs)
    rs = feasible(xs, ys, radii(xs, ys, budget))
    return sum(rs), xs, ys, rs


def feasible(xs, ys, rs):
    """Shrink all radii alike until nothing overlaps or leaves the square, with a hair to spare."""
    rs = [max(0.0, r) for r in rs]
    scale = 1.0
    for i, (x, y, r) in enumerate(zip(xs, ys, rs)):
        if r > 0:
            scale = min(scale, min(x, y, 1 - x, 1 - y) / r)
        for j in range(i):
            if r + rs[j] > 0:
                scale = min(scale, math.hypot(x - xs[j], y - ys[j]) / (r + rs[j]))
    return [r * scale * (1 - 1e-12) for r in rs]


def pack(n, seed_value, work, time_limit_s):
    """Return n circles ``[x, y, r]``, strictly valid."""
    budget = Budget(work, time_limit_s)
    _, xs, ys, rs = search(n, random.Random(seed_value), budget)
    return [list(circle) for circle in zip(xs, ys, rs)]
