"""What a packing may cost. Not evolved: only the program in ``packing.py`` is.

Work is counted in pair evaluations and not in seconds, so that the same program with the same seed gives the
same packing on a slow machine and on a busy one. The CPU time limit is a backstop.
"""

import time


class Budget:
    """An allowance of work that stages draw on."""

    def __init__(self, work, time_limit_s):
        self.work = work
        self.spent = 0
        self.deadline = time.process_time() + time_limit_s

    def spend(self, units):
        """Draw ``units`` of work; false once the allowance or the time is used up."""
        self.spent += units
        return not self.over()

    def over(self):
        return self.spent >= self.work or time.process_time() > self.deadline

    def used(self):
        """Return the part of the allowance that is spent."""
        return self.spent / self.work
