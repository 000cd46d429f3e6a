"""Bound how fast one container may use the gateway."""

from __future__ import annotations

import asyncio
import time

_SHORTEST_S = 0.001  # a shorter wait would cost more than it spares


class Pace:
    """So many a second on average, and as many as of one burst at once; used in one event loop alone."""

    def __init__(self, per_second: float, burst: float) -> None:
        """Begin with a whole burst."""
        self._per_second, self._burst_s = per_second, burst / per_second
        self._used_up_to = 0.0

    async def take(self, amount: float = 1.0) -> float:
        """Take so many, and wait until the pace allows it; return the seconds waited. First come, first served."""
        now = time.monotonic()
        self._used_up_to = max(self._used_up_to, now - self._burst_s) + amount / self._per_second
        wait_s = self._used_up_to - now
        if wait_s < _SHORTEST_S:
            return 0.0
        await asyncio.sleep(wait_s)
        return wait_s
