"""Frames between the head and a node: each arrives in order and exactly once, even if connections break.

Each side numbers its frames, and keeps each one until the other side has confirmed it. A new connection begins with
the number of the last frame that each side has; the rest is sent again. Wire: one byte for the kind, eight for the
number, eight for the number of the last frame that came from the other side, then the frame.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType

from hyperruntime.errors import ClusterError, NodeLostError

MOST_UNCONFIRMED_BYTES = 16 << 20
CONFIRM_EACH, CONFIRM_BYTES, CONFIRM_S = 64, 1 << 20, 0.5  # frames, bytes or seconds until a separate confirmation
LARGEST_FRAME_BYTES = 320 << 20  # more than the largest file or listing that a slot's methods return
# With at most this many unconfirmed bytes, a send does not wait for the connection's buffer (asyncio's low-water marks:
# 16 KiB, and 128 KiB with TLS).
_DIRECT_BYTES = 8 << 10
_PREFIX = struct.Struct(">cQQ")
_FRAME, _CONFIRM = b"f", b"c"


class Channel:
    """One side of the channel. All methods run on one event loop.

    Attributes:
        received: the number of the last frame that came.
        is_connected: whether a connection carries the frames now.
    """

    def __init__(self, on_frame: Callable[[bytes], None]) -> None:
        """Start without a connection.

        Args:
            on_frame: called with each frame; must not block and must not raise.
        """
        self.received = 0
        self.is_connected = False
        self._on_frame = on_frame
        self._sent = self._carried = 0
        self._socket: Any = None  # of the connection
        self._pushing: Any = None  # the socket on which a task is sending
        self._written = 0  # the number of the last frame that this socket was given
        self._confirmed_to_peer = self._owed_bytes = 0
        self._unconfirmed: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closed: Exception | None = None
        self._connection: asyncio.Task[None] | None = None

    async def send(self, frame: bytes) -> None:
        """Hand over a frame; wait while more than ``MOST_UNCONFIRMED_BYTES`` are on their way.

        Raises:
            ClusterError: the frame is larger than ``LARGEST_FRAME_BYTES``.
            NodeLostError: the channel was closed.
        """
        if len(frame) + _PREFIX.size > LARGEST_FRAME_BYTES:  # it would end each connection that carries it
            most = f"at most {LARGEST_FRAME_BYTES >> 20} MiB go between head and node at once, not {len(frame)} bytes"
            raise ClusterError(f"{most}; limit the output, or copy files by get and put")
        while self._closed is None and not self._room.is_set():
            await self._room.wait()
        if self._closed is not None:
            raise self._closed
        self._keep(frame)
        if self._bytes <= _DIRECT_BYTES:
            await self._push()  # in this task: to wake another costs more than to send, which does not wait
        else:
            self._changed.set()

    def send_soon(self, frame: bytes) -> None:
        """Hand over a small frame without waiting; does nothing after :meth:`close`."""
        if self._closed is None:
            self._keep(frame)
            self._changed.set()

    def _keep(self, frame: bytes) -> None:
        self._sent += 1
        self._unconfirmed.append((self._sent, frame))
        self._bytes += len(frame)
        if self._bytes > MOST_UNCONFIRMED_BYTES:
            self._room.clear()

    async def carry(self, socket: Any, peer_received: int) -> None:  # noqa: ANN401 - aiohttp's server and client sockets
        """Send and receive over a connection until it ends; an earlier connection is dropped.

        Args:
            socket: an open WebSocket of aiohttp.
            peer_received: the number of the last frame that the other side has.
        """
        self._carried += 1
        turn = self._carried
        if self._connection is not None:
            self._connection.cancel()
            await asyncio.wait([self._connection])
        if self._closed is not None or turn != self._carried:  # a later one came meanwhile
            return
        mine = self._connection = asyncio.ensure_future(self._carry(socket, peer_received))
        try:
            await asyncio.wait([mine])
        finally:  # cancelled from outside
            mine.cancel()

    def close(self, error: NodeLostError) -> None:
        """End the channel for good; waiting senders raise the error."""
        if self._closed is None:
            self._closed = error
            self._room.set()
            self._changed.set()
            if self._connection is not None:
                self._connection.cancel()

    async def _carry(self, socket: Any, peer_received: int) -> None:  # noqa: ANN401
        self._confirm(peer_received)
        self._confirmed_to_peer = self._owed_bytes = 0
        self._socket, self._written = socket, peer_received
        self.is_connected = True
        self._changed.set()
        writer = asyncio.ensure_future(self._write(socket))
        try:
            async for message in socket:
                if message.type is not WSMsgType.BINARY or len(message.data) < _PREFIX.size:
                    break
                self._take(message.data)
                if self._owes_much():
                    self._changed.set()
        except (OSError, ConnectionError):
            pass
        finally:
            if self._socket is socket:
                self._socket = None
                self.is_connected = False
            writer.cancel()
            await asyncio.wait([writer])
            with suppress(Exception):
                await socket.close()

    def _take(self, data: bytes) -> None:
        kind, number, confirmed = _PREFIX.unpack_from(data)
        self._confirm(confirmed)
        if kind == _FRAME and number == self.received + 1:
            self.received = number
            self._owed_bytes += len(data)
            self._on_frame(data[_PREFIX.size :])

    def _owes_much(self) -> bool:
        return self.received - self._confirmed_to_peer >= CONFIRM_EACH or self._owed_bytes >= CONFIRM_BYTES

    def _confirm(self, number: int) -> None:
        while self._unconfirmed and self._unconfirmed[0][0] <= number:
            self._bytes -= len(self._unconfirmed.popleft()[1])
        if self._bytes <= MOST_UNCONFIRMED_BYTES:
            self._room.set()

    async def _write(self, socket: Any) -> None:  # noqa: ANN401
        """Send queued frames and confirmations until cancelled or the connection ends."""
        with suppress(OSError, ConnectionError):
            while True:
                is_late = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(CONFIRM_S):
                        await self._changed.wait()
                        is_late = False
                self._changed.clear()
                if not await self._push():
                    return
                if self._owes_much() or (is_late and self._confirmed_to_peer < self.received):
                    await socket.send_bytes(self._prefix(_CONFIRM, 0))

    async def _push(self) -> bool:
        """Send the frames that this connection has not carried yet, unless another task is sending them.

        Return False if the connection ends: its reader sees that too, and the next connection carries the frames.
        """
        socket = self._socket
        if socket is None or self._pushing is socket:
            return True
        self._pushing = socket
        try:
            while socket is self._socket and self._unconfirmed and self._written < self._sent:
                self._written, frame = self._unconfirmed[max(0, self._written + 1 - self._unconfirmed[0][0])]
                await socket.send_bytes(self._prefix(_FRAME, self._written) + frame)
        except (OSError, ConnectionError):
            return False
        finally:
            if self._pushing is socket:
                self._pushing = None
                if self._written < self._sent:  # this task was cancelled, maybe with frames of others to send
                    self._changed.set()
        return True

    def _prefix(self, kind: bytes, number: int) -> bytes:
        """Return the prefix of a message; it confirms all received frames."""
        self._confirmed_to_peer, self._owed_bytes = self.received, 0
        return _PREFIX.pack(kind, number, self.received)
