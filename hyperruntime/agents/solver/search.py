"""Spend the processor time of one problem: draw a move, improve its start, keep the best."""

import math
import time

from search_pool import Pool


class Clock:
    """The processor time of this process."""

    def __init__(self, cpu_s):
        self.limit = cpu_s

    def over(self):
        return time.process_time() >= self.limit


def search(kind, plan, clock, rng):
    """Return the pool, and what each move cost and gained.

    Args:
        kind: of the problem.
        plan: ``moves``, their shares of the tries; ``size`` of changes; ``answers`` to start from.
        clock: the processor time.
        rng: numpy's random generator.
    """
    pool = Pool()
    for answer in plan["answers"]:
        state = kind.load(answer)
        pool.add(kind.merit(state), state)
    names = list(kind.moves)
    shares = [plan["moves"].get(name, 1.0) for name in names]
    log = {name: {"tries": 0, "seconds": 0.0, "gains": 0.0, "sizes": []} for name in names}
    while not clock.over():
        name = names[_draw(shares, rng)] if pool.best else names[int(rng.integers(2))]
        factor = math.exp(rng.normal(0, 0.7))
        started = time.process_time()
        start = kind.moves[name](kind, pool, rng, plan["size"] * factor)
        state = kind.improve(start, clock, rng, pool.aim())
        rank = pool.add(kind.merit(state), state)
        log[name]["tries"] += 1
        log[name]["seconds"] += time.process_time() - started
        if rank:
            log[name]["gains"] += 1 / rank
            log[name]["sizes"].append(round(factor, 3))
    return pool, log


def _draw(shares, rng):
    return int(rng.choice(len(shares), p=[share / sum(shares) for share in shares]))
