"""Bound the rate at which one container uses the gateway, and connects to it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

from hyperruntime.logs import get_logger

log = get_logger(__name__)

_AGAIN_S = 1.0  # after an error such as too many open files
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
