"""Bound the rate at which one container uses the gateway."""

from __future__ import annotations

import asyncio
import time

_SHORTEST_S = 0.001  # a shorter wait costs more than it saves


class Pace:
    """Limits a rate on average, and allows one burst at once. Not thread-safe: used in one event
    loop only.
    """

    def __init__(self, per_second: float, burst: float) -> None:
        """Start with a whole burst available.

        Args:
            per_second: units per second on average.
            burst: units that may be taken at once.
        """
        self._per_second = per_second
        self._burst_s = burst / per_second
        self._used_up_to = 0.0

    async def take(self, amount: float = 1.0) -> float:
        """Take `amount` units, and wait until the rate allows it, in FIFO order; return the seconds
        waited.
        """
        now = time.monotonic()
        self._used_up_to = max(self._used_up_to, now - self._burst_s) + amount / self._per_second
        wait_s = self._used_up_to - now
        if wait_s < _SHORTEST_S:
            return 0.0
        await asyncio.sleep(wait_s)
        return wait_s
