"""Building blocks that compute the radii of given centres. The meta agent reads them as text."""

# ruff: noqa: B905, F811 - blocks are alternatives for a slot of packing.py, and use its names

import math

# block: radii orders
ORDERS = 6


def radii(xs, ys, budget):
    """Greedy growth in several orders (as given, outside in, crowded first, ...); the best sum
    counts.
    """
    n = len(xs)
    budget.spend(ORDERS * n * n)
    gaps = [
        [math.hypot(x - u, y - v) if i != j else 9.0 for j, (u, v) in enumerate(zip(xs, ys))]
        for i, (x, y) in enumerate(zip(xs, ys))
    ]
    walls = [min(x, y, 1 - x, 1 - y) for x, y in zip(xs, ys)]
    base = [min(wall, min(row) / 2) for wall, row in zip(walls, gaps)]
    best = base
    for turn in range(ORDERS):
        keys = (
            range(n),
            walls,
            base,
            [-r for r in base],
            [-w for w in walls],
            [x + turn * y for x, y in zip(xs, ys)],
        )
        rs = base[:]
        for i in sorted(range(n), key=keys[min(turn, 5)].__getitem__):
            rs[i] = 0.0
            rs[i] = max(0.0, min(walls[i], 1.0, *(gap - r for gap, r in zip(gaps[i], rs))))
        best = max(best, rs, key=sum)
    return best


# end


# block: radii matching
def radii(xs, ys, budget):
    """The largest sum of radii there is for these centres.

    "r_i + r_j <= d_ij, r_i <= wall_i" is a linear programme; doubled, it is the dual of an
    assignment problem with costs d_ij and 2 wall_i on the diagonal, and the radii are the means of
    both potentials (shortest augmenting paths, O(n^3)).
    """
    n = len(xs)
    budget.spend(n * n * n // 3)
    cost = [[math.hypot(x - u, y - v) for u, v in zip(xs, ys)] for x, y in zip(xs, ys)]
    for i, (x, y) in enumerate(zip(xs, ys)):
        cost[i][i] = 2 * min(x, y, 1 - x, 1 - y)
    rows, columns, owner = [0.0] * n, [0.0] * n, [-1] * n
    for start in range(n):
        reach, back, done = [math.inf] * n, [-1] * n, []
        open_columns, row, last, depth = set(range(n)), start, -1, 0.0
        while row >= 0:
            base = rows[row] - depth
            for j in open_columns:
                length = cost[row][j] - base - columns[j]
                if length < reach[j]:
                    reach[j], back[j] = length, last
            last = min(open_columns, key=reach.__getitem__)
            depth, row = reach[last], owner[last]
            open_columns.remove(last)
            done.append(last)
        rows[start] += depth
        for j in done:
            columns[j] -= depth - reach[j]
            if owner[j] >= 0:
                rows[owner[j]] += depth - reach[j]
        while last >= 0:
            previous = back[last]
            owner[last] = owner[previous] if previous >= 0 else start
            last = previous
    return [max(0.0, (a + b) / 2) for a, b in zip(rows, columns)]


# end
