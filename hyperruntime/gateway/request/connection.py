"""Accept clients' connections; bound their number, their rate, their idle time and the requests they send ahead."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from hyperruntime.gateway.request.pace import Pace
from hyperruntime.logs import get_logger

log = get_logger(__name__)

_MAX_AHEAD = 8
_AGAIN_S = 1.0
_UPGRADED = ("_upgraded", "_upgrade")  # aiohttp's attribute: since 3.14, and before


class Connections:
    """Counts the open connections of a seat.

    Attributes:
        limit: connections that may be open at once.
        client_s: seconds that a client has to send a whole request head.
        open: connections that are open.
    """

    def __init__(self, limit: int, client_s: float) -> None:
        """Start with no open connections.

        Args:
            limit: connections that may be open at once.
            client_s: seconds that a client has to send a whole request head.
        """
        self.limit, self.client_s = limit, client_s
        self.open = 0


async def accept_connections(listener: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], pace: Pace) -> None:
    """Accept connections one by one, at a pace, until cancelled; asyncio's own server accepts a hundred at once.

    Args:
        listener: a listening socket, non-blocking.
        protocol: creates the protocol of a connection.
        pace: bounds the rate of connections.
    """
    loop = asyncio.get_running_loop()
    while True:
        client: socket.socket | None = None
        try:
            await _until_readable(listener)
            client, _ = listener.accept()
            client.setblocking(False)
            await pace.take()
            await loop.connect_accepted_socket(protocol, client)
            client = None
        except BlockingIOError:  # the client has left already
            continue
        except OSError as error:
            log.warning("gateway takes no connection for a while", error=str(error))
            await asyncio.sleep(_AGAIN_S)
        finally:
            if client is not None:
                client.close()


async def _until_readable(listener: socket.socket) -> None:
    """Wait for a connection without accepting it: a cancelled ``sock_accept`` of asyncio can lose a connection."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listener)


class BoundedConnection(web.RequestHandler):
    """A connection of aiohttp that is closed if no request arrives in time, or too many arrive ahead of their answers.

    The time runs while no request is served. It starts when the wait starts, not at the last byte, so a client that
    sends a byte now and then cannot keep the connection open.
    """

    def __init__(self, connections: Connections, server: web.Server, **options: Any) -> None:  # noqa: ANN401
        """Create a connection.

        Args:
            connections: counts the connections of the seat.
            server: the server of aiohttp that handles the requests.
            options: options of ``aiohttp.web.RequestHandler``.
        """
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None
        self._socket: asyncio.Transport | None = None
        self._counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or close it if the seat is at its limit."""
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
        """Parse bytes; drop a client that sends many requests ahead or asks to upgrade to another protocol."""
        super().data_received(data)
        upgrades = any(getattr(self, name, False) is True for name in _UPGRADED)
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
        """Log an error of the gateway as a warning, and a client's malformed request for debugging only."""
        error = kw.get("exc_info")
        tell = log.debug if isinstance(error, HttpProcessingError) else log.warning
        tell("gateway request failed", error=repr(error))
