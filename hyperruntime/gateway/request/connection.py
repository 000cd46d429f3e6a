"""One client's connection, bounded in time and in what it may send ahead."""

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
_UPGRADED = ("_upgraded", "_upgrade")  # aiohttp's name for it, from 3.14 on and before


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

    def refuse_all(self) -> None:
        """Take no more, also none that was accepted and has not begun yet."""
        self.limit = 0


async def accept_connections(listener: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], pace: Pace) -> None:
    """Take connections one by one, at a pace, until cancelled; asyncio's own server takes a hundred at once."""
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
        except BlockingIOError:  # who connected is gone
            continue
        except OSError as error:
            log.warning("gateway takes no connection for a while", error=str(error))
            await asyncio.sleep(_AGAIN_S)
        finally:
            if client is not None:
                client.close()


async def _until_readable(listener: socket.socket) -> None:
    """Wait for a connection, and do not take it: asyncio's ``sock_accept`` loses one when it is cancelled then."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listener)


class BoundedConnection(web.RequestHandler):
    """aiohttp's own connection, closed when it brings no request in time, or too many ahead of their answers.

    The time runs while no request is being served, from its start and not from the last byte, so that a byte now
    and then does not keep it open.
    """

    def __init__(self, connections: Connections, server: web.Server, **options: Any) -> None:  # noqa: ANN401
        """Serve for a server, with aiohttp's options."""
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None
        self._socket: asyncio.Transport | None = None
        self._counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it, or close it where the seat has enough."""
        self._socket = cast(asyncio.Transport, transport)
        super().connection_made(transport)
        if self._connections.open >= self._connections.limit:
            self._connections.refused += 1
            self.drop()
            return
        self._connections.open += 1
        self._counted = True
        self.wait_for_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count it no more."""
        self.serve_request()
        self._socket = None
        if self._counted:
            self._connections.open -= 1
            self._counted = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, and refuse a client that sends many requests without reading answers, or another protocol."""
        super().data_received(data)
        if len(self._messages) > _MAX_AHEAD or self._asks_for_another_protocol():
            self.drop()

    def _asks_for_another_protocol(self) -> bool:
        return any(getattr(self, name, False) is True for name in _UPGRADED)

    def wait_for_head(self) -> None:
        """Start the time that the client has for its next request's head."""
        self.serve_request()
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._connections.client_s, self.drop)

    def serve_request(self) -> None:
        """Stop that time: a request is here, and has a deadline of its own."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def drop(self) -> None:
        """Close it now, whatever is not sent yet."""
        if self._socket is not None:
            self._socket.abort()

    def log_exception(self, *args: Any, **kw: Any) -> None:  # noqa: ANN401 - as logging takes them
        """Tell a fault of ours; what a client sent wrong is no news."""
        error = kw.get("exc_info")
        tell = log.debug if isinstance(error, HttpProcessingError) else log.warning
        tell("gateway request failed", error=repr(error))
