"""Connections of HTTP clients, whose number, idle time and requests sent ahead are bounded."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from hyperruntime.logs import get_logger

log = get_logger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MAX_AHEAD = 8
_UPGRADED = ("_upgraded", "_upgrade")  # aiohttp's attribute: since 3.14, and before
MOST_CONNECTIONS = 512
CLIENT_S = 30.0


class Connections:
    """Counts the open connections of a server.

    Attributes:
        limit: connections that may be open at once.
        client_s: seconds that a client has to send a whole request head.
        open: connections that are open.
    """

    def __init__(self, limit: int = MOST_CONNECTIONS, client_s: float = CLIENT_S) -> None:
        """Start with no open connections.

        Args:
            limit: connections that may be open at once.
            client_s: seconds that a client has to send a whole request head.
        """
        self.limit = limit
        self.client_s = client_s
        self.open = 0


class BoundedConnection(web.RequestHandler):
    """A connection of aiohttp that is closed if no request arrives in time, or too many arrive
    ahead of their answers.

    The time runs while no request is served. It starts when the wait starts, not at the last byte,
    so a client that sends a byte now and then cannot keep the connection open.
    """

    def __init__(
        self,
        connections: Connections,
        server: web.Server,
        *,
        may_upgrade: bool = False,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Create a connection.

        Args:
            connections: counts the connections of the server.
            server: the server of aiohttp that handles the requests.
            may_upgrade: whether a client may ask for another protocol, such as WebSocket.
            options: options of ``aiohttp.web.RequestHandler``.
        """
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._connections = connections
        self._may_upgrade = may_upgrade
        self._timer: asyncio.TimerHandle | None = None
        self._socket: asyncio.Transport | None = None
        self._counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or close it if the server is at its limit."""
        self._socket = cast(asyncio.Transport, transport)
        super().connection_made(transport)
        if self._connections.open >= self._connections.limit:
            self.drop()
            return
        self._connections.open += 1
        self._counted = True
        self.wait_for_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Uncount the connection."""
        self.serve_request()
        self._socket = None
        if self._counted:
            self._connections.open -= 1
            self._counted = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes; drop a client that sends many requests ahead, or asks for another protocol
        and may not.
        """
        super().data_received(data)
        upgrades = not self._may_upgrade and any(
            getattr(self, name, False) is True for name in _UPGRADED
        )
        if upgrades or len(self._messages) > _MAX_AHEAD:
            self.drop()

    def wait_for_head(self) -> None:
        """Start the timer for the head of the next request."""
        self.serve_request()
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._connections.client_s, self.drop)

    def serve_request(self) -> None:
        """Stop that timer: the request that arrived has its own deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def drop(self) -> None:
        """Close the connection immediately; unsent data is lost."""
        if self._socket is not None:
            self._socket.abort()

    def log_exception(self, *args: Any, **kw: Any) -> None:  # noqa: ANN401 - as logging takes them
        """Log an error of the server as a warning, and a client's malformed request for debugging
        only.
        """
        error = kw.get("exc_info")
        write = log.debug if isinstance(error, HttpProcessingError) else log.warning
        write("http request failed", error=repr(error))


class BoundedProtocol(asyncio.Protocol):
    """Bounds the connections of uvicorn: a base class, to be listed before uvicorn's own protocol
    class.

    A connection is closed if its server is at its limit, or if for a whole period no request began
    or was served. So a client that sends a byte now and then cannot keep it open.

    Attributes:
        bounds: counts the connections of all servers of this process; a class may have its own.
    """

    bounds = Connections()
    _is_counted = False
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or close it if the server is at its limit."""
        super().connection_made(transport)
        if self.bounds.open >= self.bounds.limit:
            cast(asyncio.Transport, transport).abort()
            return
        self.bounds.open, self._is_counted = self.bounds.open + 1, True
        self._look_later(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Uncount the connection."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        self.bounds.open, self._is_counted = self.bounds.open - self._is_counted, False

    def _look_later(self, transport: asyncio.BaseTransport) -> None:
        # uvicorn's attribute: the last request whose head is there
        last = getattr(self, "cycle", None)

        def look() -> None:
            if getattr(self, "cycle", None) is last and (last is None or last.response_complete):
                cast(asyncio.Transport, transport).abort()
            else:
                self._look_later(transport)

        self._timer = asyncio.get_running_loop().call_later(self.bounds.client_s, look)


@web.middleware
async def _timed(request: web.Request, handler: Handler) -> web.StreamResponse:
    connection = cast(BoundedConnection, request.protocol)
    connection.serve_request()
    try:
        return await handler(request)
    finally:
        connection.wait_for_head()


@asynccontextmanager
async def serving_app(
    app: web.Application,
    listener: socket.socket,
    *,
    most: int = MOST_CONNECTIONS,
    client_s: float = CLIENT_S,
    shutdown_s: float,
    ends_requests: bool = False,
    may_upgrade: bool = False,
    tls: ssl.SSLContext | None = None,
    **options: Any,  # noqa: ANN401
) -> AsyncIterator[asyncio.Server]:
    """Serve an application inside the block, on bounded connections; yield the server, which may be
    closed earlier.

    Args:
        app: the application; it was not served before.
        listener: a listening socket; it is closed at the end.
        most: connections that may be open at once; further ones are closed immediately.
        client_s: seconds that a client has to send a whole request head.
        shutdown_s: seconds that requests have at the end.
        ends_requests: whether a request ends when its client is gone.
        may_upgrade: whether a client may ask for another protocol, such as WebSocket.
        tls: settings of TLS, which clients must use; None means plain HTTP.
        options: options of ``aiohttp.web.RequestHandler``.
    """
    app.middlewares.insert(0, _timed)
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=ends_requests,
        shutdown_timeout=shutdown_s,
        **options,
    )
    await runner.setup()
    connections = Connections(most, client_s)
    server = cast(web.Server, runner.server)
    accepting = await asyncio.get_running_loop().create_server(
        lambda: BoundedConnection(
            connections, server, may_upgrade=may_upgrade, access_log=None, **options
        ),
        sock=listener,
        ssl=tls,
        ssl_handshake_timeout=None if tls is None else client_s,
    )
    try:
        yield accepting
    finally:
        accepting.close()
        await runner.cleanup()
        listener.close()
