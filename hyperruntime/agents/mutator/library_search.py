"""Building blocks that choose the attempts. The meta agent reads them as text."""

# ruff: noqa: F811, F821 - blocks are alternatives for a slot of packing.py, and use its names

import math

# block: search restarts
RESTARTS = 12


def search(n, rng, budget):
    """Try from several starts and keep the best."""
    best = (-1.0, [], [], [])
    for _ in range(RESTARTS):
        xs, ys = seed(n, rng)
        best = max(best, attempt(xs, ys, [START / math.sqrt(n)] * n, rng, budget))
        if budget.over():
            break
    return best


# end


# block: search hops
HOPS_STARTS = 3
HOPS_LIMIT = 30
HOPS_SHAKE = 0.05
HOPS_DEFLATE = 0.8


def search(n, rng, budget):
    """Basin hopping: after a few starts, shake the best packing a little and settle it again."""
    best = (-1.0, [], [], [])
    for turn in range(HOPS_STARTS + HOPS_LIMIT):
        if turn < HOPS_STARTS:
            xs, ys = seed(n, rng)
            rs = [START / math.sqrt(n)] * n
        else:
            xs = [x + rng.gauss(0, HOPS_SHAKE) for x in best[1]]
            ys = [y + rng.gauss(0, HOPS_SHAKE) for y in best[2]]
            rs = [r * HOPS_DEFLATE for r in best[3]]
        best = max(best, attempt(inside(xs), inside(ys), rs, rng, budget))
        if budget.over():
            break
    return best


# end


# block: search transplants
TRANSPLANT_STARTS = 3
TRANSPLANT_LIMIT = 30
TRANSPLANT_SMALLEST = 0.5


def search(n, rng, budget):
    """Take one circle, often the smallest, out of the best packing and put it elsewhere."""
    best = (-1.0, [], [], [])
    for turn in range(TRANSPLANT_STARTS + TRANSPLANT_LIMIT):
        if turn < TRANSPLANT_STARTS:
            xs, ys = seed(n, rng)
            rs = [START / math.sqrt(n)] * n
        else:
            xs, ys, rs = best[1][:], best[2][:], best[3][:]
            smallest = rng.random() < TRANSPLANT_SMALLEST
            i = rs.index(min(rs)) if smallest else rng.randrange(n)
            xs[i], ys[i], rs[i] = rng.random(), rng.random(), START / math.sqrt(n)
        best = max(best, attempt(inside(xs), inside(ys), rs, rng, budget))
        if budget.over():
            break
    return best


# end
