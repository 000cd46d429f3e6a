"""Bound what the bodies of one seat's requests take of memory at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hyperruntime.gateway.config.values import ClientLimits
from hyperruntime.gateway.request.parse import RequestRefusedError


class BodyBudget:
    """What a seat may hold; used in the gateway's event loop alone."""

    def __init__(self, limits: ClientLimits) -> None:
        """Hold nothing yet; one body always has room."""
        self._limit = max(limits.held_bytes, limits.body_bytes)
        self._held = 0

    @asynccontextmanager
    async def share(self) -> AsyncIterator[Callable[[int], None]]:
        """Give a request what takes room for some bytes, or raises RequestRefusedError; it is free again at the end."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._held + size > self._limit:
                why = f"the requests of this container hold {self._limit} bytes already; ask again later"
                raise RequestRefusedError(429, "too_much_at_once", why)
            taken += size
            self._held += size

        try:
            yield take
        finally:
            self._held -= taken
