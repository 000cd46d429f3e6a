"""Bound the memory that the bodies of one seat's requests hold at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hyperruntime.gateway.config.values import ClientLimits
from hyperruntime.gateway.request.parse import RequestRefusedError


class BodyBudget:
    """Counts the bytes that a seat's requests hold. Not thread-safe: used in the gateway's event loop only."""

    def __init__(self, limits: ClientLimits) -> None:
        """Start with no bytes held; the limit is at least one body of full size."""
        self._limit = max(limits.held_bytes, limits.body_bytes)
        self._held = 0

    @asynccontextmanager
    async def share(self) -> AsyncIterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for one request; they are released when the block ends.

        The function raises :class:`RequestRefusedError` if the seat would hold more than the limit.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._held + size > self._limit:
                why = f"the requests of this container hold more than {self._limit} bytes; retry later"
                raise RequestRefusedError(429, "too_much_at_once", why)
            taken += size
            self._held += size

        try:
            yield take
        finally:
            self._held -= taken
