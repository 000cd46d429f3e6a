"""Building blocks of packing programs: the first centres (``seed``), the radii of given centres
(``radii``), moves of circles (``stage``), and the choice of attempts (``search``).

The meta agent reads them as text and inserts them into packing.py, whose names they use. A stage
takes centres and radii and returns better ones; circles may overlap between stages, because the
radii are computed again at the end.
"""

# ruff: noqa: B905, F811, F821 - blocks are alternatives for a slot of packing.py, and use its names

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


# block: stage nudge
NUDGE_TRIALS = 150
NUDGE_STEP = 0.06


def stage_nudge(xs, ys, rs, rng, budget):
    """Hill climbing: move one centre at random, keep the move if the radii then sum to more."""
    rs = radii(xs, ys, budget)
    for trial in range(NUDGE_TRIALS):
        if budget.over():
            break
        step = NUDGE_STEP * (1 - trial / NUDGE_TRIALS)
        i = rng.randrange(len(xs))
        us, vs = xs[:], ys[:]
        us[i] = min(1.0, max(0.0, us[i] + rng.gauss(0, step)))
        vs[i] = min(1.0, max(0.0, vs[i] + rng.gauss(0, step)))
        grown = radii(us, vs, budget)
        if sum(grown) > sum(rs):
            xs, ys, rs = us, vs, grown
    return xs, ys, rs


# end


# block: stage spread
SPREAD_STEPS = 40
SPREAD_FORCE = 0.0006


def stage_spread(xs, ys, rs, rng, budget):
    """Let centres push each other apart like equal charges, the walls mirroring them."""
    xs, ys, n = xs[:], ys[:], len(xs)
    for step in range(SPREAD_STEPS):
        if not budget.spend(n * n):
            break
        force = SPREAD_FORCE * (1 - step / SPREAD_STEPS)
        for i in range(n):
            x, y = xs[i], ys[i]
            fx = 1 / (4 * x * x + 1e-4) - 1 / (4 * (1 - x) ** 2 + 1e-4)
            fy = 1 / (4 * y * y + 1e-4) - 1 / (4 * (1 - y) ** 2 + 1e-4)
            for j in range(n):
                dx, dy = x - xs[j], y - ys[j]
                weight = (dx * dx + dy * dy + 1e-4) ** -1.5
                fx += dx * weight
                fy += dy * weight
            xs[i] = min(0.99, max(0.01, x + max(-0.05, min(0.05, force * fx))))
            ys[i] = min(0.99, max(0.01, y + max(-0.05, min(0.05, force * fy))))
    return xs, ys, rs


# end


# block: stage push
PUSH_STEPS = 250
PUSH_WEIGHT = 30.0
PUSH_RATE = 0.1


def stage_push(xs, ys, rs, rng, budget):
    """Gradient ascent over centres and radii: the sum of radii minus a penalty on squared
    overlaps.
    """
    xs, ys, rs, n = xs[:], ys[:], rs[:], len(xs)
    for _ in range(PUSH_STEPS):
        if not budget.spend(n * (n - 1) // 2 + 2 * n):
            break
        gx, gy, gr = [0.0] * n, [0.0] * n, [1 / PUSH_WEIGHT] * n
        for i in range(n):
            x, y, r = xs[i], ys[i], rs[i]
            gx[i] += max(0.0, r - x) - max(0.0, r + x - 1)
            gy[i] += max(0.0, r - y) - max(0.0, r + y - 1)
            gr[i] -= max(0.0, r - x) + max(0.0, r + x - 1) + max(0.0, r - y) + max(0.0, r + y - 1)
            for j in range(i):
                dx, dy, reach = x - xs[j], y - ys[j], r + rs[j]
                square = dx * dx + dy * dy
                if square < reach * reach:
                    distance = math.sqrt(square) + 1e-12
                    overlap = reach - distance
                    gr[i] -= overlap
                    gr[j] -= overlap
                    dx, dy = dx * overlap / distance, dy * overlap / distance
                    gx[i] += dx
                    gx[j] -= dx
                    gy[i] += dy
                    gy[j] -= dy
        xs = [min(1.0, max(0.0, x + PUSH_RATE * g)) for x, g in zip(xs, gx)]
        ys = [min(1.0, max(0.0, y + PUSH_RATE * g)) for y, g in zip(ys, gy)]
        rs = [max(0.0, r + PUSH_RATE * g) for r, g in zip(rs, gr)]
    return xs, ys, rs


# end


# block: stage anneal
ANNEAL_STEPS = 300
ANNEAL_SOFT = 30.0
ANNEAL_HARD = 1000.0
ANNEAL_RATE = 0.03
ANNEAL_MOMENTUM = 0.9
ANNEAL_REACH = 0.08
ANNEAL_EVERY = 20


def stage_anneal(xs, ys, rs, rng, budget):
    """Momentum ascent with a penalty on overlaps that hardens, over pairs that are near each
    other.
    """
    n, near = len(xs), []
    z, velocity = xs + ys + rs, [0.0] * (3 * len(xs))
    for step in range(ANNEAL_STEPS):
        if step % ANNEAL_EVERY == 0:
            z = [min(1.0, max(0.0, value)) for value in z]
            budget.spend(n * n // 2)
            near = [
                (i, n + i, 2 * n + i, j, n + j, 2 * n + j)
                for i in range(n)
                for j in range(i)
                if math.hypot(z[i] - z[j], z[n + i] - z[n + j]) - z[2 * n + i] - z[2 * n + j]
                < ANNEAL_REACH
            ]
        if not budget.spend(len(near) + 2 * n):
            break
        weight = ANNEAL_SOFT * (ANNEAL_HARD / ANNEAL_SOFT) ** (step / ANNEAL_STEPS)
        g = [0.0] * (2 * n) + [1 / weight] * n
        for i, ni, ri, j, nj, rj in near:
            dx, dy, reach = z[i] - z[j], z[ni] - z[nj], z[ri] + z[rj]
            square = dx * dx + dy * dy
            if square < reach * reach:
                distance = math.sqrt(square) + 1e-12
                overlap = reach - distance
                g[ri] -= overlap
                g[rj] -= overlap
                overlap /= distance
                dx *= overlap
                dy *= overlap
                g[i] += dx
                g[j] -= dx
                g[ni] += dy
                g[nj] -= dy
        for i in range(2 * n):
            r, place, k = z[2 * n + i % n], z[i], 2 * n + i % n
            if r > place:
                g[i] += r - place
                g[k] -= r - place
            if r > 1 - place:
                g[i] -= r - 1 + place
                g[k] -= r - 1 + place
        velocity = [ANNEAL_MOMENTUM * v + ANNEAL_RATE * d for v, d in zip(velocity, g)]
        z = [value + v for value, v in zip(z, velocity)]
    return z[:n], z[n : 2 * n], z[2 * n :]


# end


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
