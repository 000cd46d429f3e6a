"""Spend the processor time of one problem: draw a move, improve its start, keep what is better."""

import math
import time

from search_pool import Pool

START = 0.3  # the share of a start beside that of a move, before anything is known


class Clock:
    """The processor time of this process."""

    def __init__(self, cpu_s):
        self.limit = cpu_s

    def over(self):
        return time.process_time() >= self.limit


def search(kind, plan, clock, rng):
    """Return the pool, and what each start and move cost and gained.

    Args:
        kind: of the problem.
        plan: ``moves``, the shares of the tries; ``size`` of changes; the ``answers`` that are
            known, and the ``chains`` to continue; ``seed``, for the names of new chains.
        clock: the processor time.
        rng: numpy's random generator.
    """
    pool = recalled(kind, plan)
    both = {**kind.starts, **kind.moves}
    log = {name: {"tries": 0, "seconds": 0.0, "gains": 0.0, "sizes": []} for name in both}
    shares = {name: plan["moves"].get(name, START if name in kind.starts else 1.0) for name in both}
    while not clock.over():
        starting = pool.needs_start()
        name = _draw(kind.starts if starting else both, shares, rng)
        chain = None if name in kind.starts else pool.choose(rng)
        factor = math.exp(rng.normal(0, 0.7))
        started = time.process_time()
        start = both[name](kind, pool, rng, plan["size"] * factor)
        state = kind.improve(start, clock, pool.aim(chain))
        number = sum(one["tries"] for one in log.values())
        rank = pool.offer(chain, f"{plan['seed']}/{number}", kind.merit(state), state)
        log[name]["tries"] += 1
        log[name]["seconds"] += time.process_time() - started
        if rank and not starting:
            log[name]["gains"] += 1 / rank
            log[name]["sizes"].append(round(factor, 3))
    return pool, log


def recalled(kind, plan):
    """Return a pool with the answers and the chains of a plan."""
    pool = Pool()
    for name, answer, fails in plan["chains"]:
        state = kind.load(answer)
        pool.resume(name, kind.merit(state), state, fails)
        pool.starts = 0
    for name, answer in plan["answers"]:
        state = kind.load(answer)
        pool.keep(kind.merit(state), state, name)
    return pool


def _draw(names, shares, rng):
    weights = [shares[name] for name in names]
    return list(names)[int(rng.choice(len(weights), p=[one / sum(weights) for one in weights]))]
