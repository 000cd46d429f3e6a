"""Building blocks of stages, which move circles. The meta agent reads them as text.

A stage takes centres and radii and returns better ones. Circles may overlap between stages, because
the radii are computed again at the end.
"""

# ruff: noqa: B905, F821 - blocks are inserted into packing.py, and use its names

import math

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
