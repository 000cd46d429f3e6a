"""The work budget of a packing. It does not evolve; only the program in ``packing.py`` does.

Work is counted in pair evaluations and not in seconds, so the same program with the same seed gives
the same packing on slow and on busy machines. The CPU time limit is a second, higher limit.
"""

import time


class Budget:
    """An amount of work that stages may spend."""

    def __init__(self, work, time_limit_s):
        self.work = work
        self.spent = 0
        self.deadline = time.process_time() + time_limit_s

    def spend(self, units):
        """Spend ``units`` of work; return False if the work or the CPU time is used up."""
        self.spent += units
        return not self.over()

    def over(self):
        return self.spent >= self.work or time.process_time() > self.deadline

    def used(self):
        """Return the spent share of the work."""
        return self.spent / self.work
