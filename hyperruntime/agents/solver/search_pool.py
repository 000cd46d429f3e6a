"""The chains of answers that a search improves, and the best answers of all chains."""

import math

CHAINS = 3
STARTS = 5
KEPT = 6
PATIENCE = 100
CLOSER = 1e-9


class Pool:
    """A search improves a few chains; a chain that is stuck gives its place to a new one.

    A chain is stuck after ``PATIENCE`` tries without a better answer, or if another chain had the
    same answer. Then some new chains are tried: one takes a free place, or that of the worst chain
    if it is better.
    """

    def __init__(self):
        self.chains = []  # {"name", "merit", "state", "fails"}, the best one first
        self.best = []  # (merit, state, name), one of each chain that ever was, the best one first
        self.current = None  # the chain that the next move changes
        self.starts = STARTS  # new chains to try before the next move

    def needs_start(self):
        return self.starts > 0 or len(self.chains) < CHAINS

    def aim(self, chain):
        """Return the merit that the next state of a chain needs; of a new one for None."""
        if chain is not None:
            return chain["merit"]
        return -math.inf if len(self.chains) < CHAINS else self.chains[-1]["merit"]

    def offer(self, chain, name, merit, state):
        """Take a state into a chain, or as a new chain, if it is better.

        Args:
            chain: of ``chains``; None means a new one.
            name: of the new chain.
            merit: of the state.
            state: the state.

        Returns:
            The rank of the chain, 1 is the best; 0 if the state is not taken.
        """
        better = merit > self.aim(chain) + CLOSER
        if chain is None:
            self.starts = max(0, self.starts - 1)
        else:
            name, chain["fails"] = chain["name"], chain["fails"] + 1
            if better or chain["fails"] == PATIENCE:
                self.chains.remove(chain)
        if not better or not self.keep(merit, state, name):
            if len(self.chains) < CHAINS and chain is not None:
                self.starts = STARTS
            return 0
        del self.chains[CHAINS - 1 :]
        self.resume(name, merit, state, 0)
        return 1 + [one["name"] for one in self.chains].index(name)

    def resume(self, name, merit, state, fails):
        """Add a chain."""
        self.chains.append({"name": name, "merit": merit, "state": state, "fails": fails})
        self.chains.sort(key=lambda one: -one["merit"])

    def keep(self, merit, state, name):
        """Remember the best answer of a chain; return False if another chain had it."""
        others = [known for known in self.best if known[2] != name]
        if any(abs(merit - one[0]) <= CLOSER for one in others):
            return False
        self.best = sorted([*others, (merit, state, name)], key=lambda known: -known[0])[:KEPT]
        return True

    def choose(self, rng):
        """Return the chain that the next move changes; the best one is the most likely."""
        self.current = self.chains[min(int(rng.geometric(0.5)), len(self.chains)) - 1]
        return self.current

    def pick(self):
        """Return a copy of the state of the chosen chain."""
        return self.current["state"].copy()

    def other(self, rng):
        """Return a copy of one of the best states; the best one is the most likely."""
        place = min(int(rng.geometric(0.5)), len(self.best)) - 1
        return self.best[place][1].copy()
