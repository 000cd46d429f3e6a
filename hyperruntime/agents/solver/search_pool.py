"""The best different answers of a search."""

import math

KEPT = 6
CLOSER = 1e-9


class Pool:
    """The best different answers: ``(merit, state)``, the best one first."""

    def __init__(self):
        self.best = []

    def add(self, merit, state):
        """Return the rank of a state, 1 is the best; 0 if it is not kept."""
        for known, _ in self.best:
            if abs(known - merit) <= CLOSER * max(1.0, abs(known)):
                return 0
        self.best.append((merit, state))
        self.best.sort(key=lambda pair: -pair[0])
        del self.best[KEPT:]
        return next((k for k, pair in enumerate(self.best, 1) if pair[1] is state), 0)

    def aim(self):
        """Return the merit that a state needs to be kept."""
        return self.best[-1][0] if len(self.best) == KEPT else -math.inf

    def pick(self, rng):
        """Return a copy of a good state; the best one is the most likely."""
        place = min(int(rng.geometric(0.5)), len(self.best)) - 1
        return self.best[place][1].copy()
