"""One client's connection, bounded in time and in what it may send ahead. Imports aiohttp."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

_MAX_AHEAD = 8


class Connections:
    """Counts the open connections of a seat.

    Attributes:
        limit: how many may be open.
        client_s: seconds that one may stay without a whole request head.
        refused: how many were closed at once.
    """

    def __init__(self, limit: int, client_s: float) -> None:
        """Count from none."""
        self.limit, self.client_s = limit, client_s
        self.open = 0
        self.refused = 0


class BoundedConnection(web.RequestHandler[web.BaseRequest]):
    """aiohttp's own connection, closed when it brings no request in time, or too many ahead of their answers.

    The time runs while no request is being served, from its start and not from the last byte, so that a byte now
    and then does not keep it open.
    """

    def __init__(self, connections: Connections, server: web.Server[web.BaseRequest], **options: Any) -> None:  # noqa: ANN401
        """Serve for a server, with aiohttp's options."""
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None
        self._counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it, or close it where the seat has enough."""
        super().connection_made(transport)
        if self._connections.open >= self._connections.limit:
            self._connections.refused += 1
            self._drop()
            return
        self._connections.open += 1
        self._counted = True
        self.wait_for_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count it no more."""
        self.serve_request()
        if self._counted:
            self._connections.open -= 1
            self._counted = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, and refuse a client that sends many requests without reading answers."""
        super().data_received(data)
        if len(self._messages) > _MAX_AHEAD:
            self._drop()

    def wait_for_head(self) -> None:
        """Start the time that the client has for its next request's head."""
        self.serve_request()
        if self.transport is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._connections.client_s, self._drop)

    def serve_request(self) -> None:
        """Stop that time: a request is here, and has a deadline of its own."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()  # type: ignore[attr-defined]
