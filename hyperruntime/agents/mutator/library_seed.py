"""Building blocks that choose the first centres. The meta agent reads them as text."""

# ruff: noqa: F811 - blocks are alternatives for a slot of packing.py, and use its names

import math

# block: seed rows
ROWS_JITTER = 0.01


def seed(n, rng):
    """Spread n over about sqrt(n) rows as evenly as possible."""
    rows = max(1, round(math.sqrt(n)))
    xs, ys = [], []
    for row in range(rows):
        count = n * (row + 1) // rows - n * row // rows
        for column in range(count):
            xs.append((column + 0.5) / count + rng.gauss(0, ROWS_JITTER))
            ys.append((row + 0.5) / rows + rng.gauss(0, ROWS_JITTER))
    return xs, ys


# end


# block: seed hex
HEX_JITTER = 0.02
HEX_ASPECT = 1.07


def seed(n, rng):
    """Rows of a honeycomb: every second one is shifted by half a step."""
    rows = max(1, round(math.sqrt(n) * HEX_ASPECT))
    xs, ys = [], []
    for row in range(rows):
        count = n * (row + 1) // rows - n * row // rows
        shift = 0.25 if row % 2 else -0.25
        for column in range(count):
            xs.append((column + 0.5 + shift) / count + rng.gauss(0, HEX_JITTER))
            ys.append((row + 0.5) / rows + rng.gauss(0, HEX_JITTER))
    return xs, ys


# end


# block: seed scatter
SCATTER_CANDIDATES = 8


def seed(n, rng):
    """Random points, each the farthest from its predecessors among a few candidates."""
    points = []
    for _ in range(n):
        candidates = [(rng.random(), rng.random()) for _ in range(SCATTER_CANDIDATES)]
        points.append(
            max(candidates, key=lambda c: min((math.dist(c, p) for p in points), default=1.0))
        )
    return [x for x, _ in points], [y for _, y in points]


# end
