"""Accept clients' connections at a pace."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from hyperruntime.gateway.request.pace import Pace
from hyperruntime.logs import get_logger

log = get_logger(__name__)

_AGAIN_S = 1.0


async def accept_connections(
    listener: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], pace: Pace
) -> None:
    """Accept connections one by one, at a pace, until cancelled; asyncio's own server accepts a
    hundred at once.

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
    """Wait for a connection without accepting it: a cancelled ``sock_accept`` of asyncio can lose a
    connection.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listener)
