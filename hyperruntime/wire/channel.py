"""Frames between the head and a node: each arrives in order and exactly once, even if connections
break.

Each side numbers its frames, and keeps each one until the other side has confirmed it. A new
connection begins with the number of the last frame that each side has; the rest is sent again.
Wire: one byte for the kind, eight for the number, eight for the number of the last frame that came
from the other side, then the frame. A large frame goes in parts with numbers of their own, so that
no message of a connection takes long to read.

The other side is not trusted: a number that it cannot have, or a part that is too small or one too
many, ends the channel. A side that sends very much gets its turn, and so does everything else on
the event loop.
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
from hyperruntime.wire.messages import PeerFaultError

MOST_UNCONFIRMED_BYTES = 16 << 20
# frames, bytes or seconds until a separate confirmation
CONFIRM_EACH = 64
CONFIRM_BYTES = 1 << 20
CONFIRM_S = 0.5
# more than the largest file or listing that a slot's methods return
LARGEST_FRAME_BYTES = 320 << 20
# With at most this many unconfirmed bytes, a send does not wait for the connection's buffer
# (asyncio's low-water marks: 16 KiB, and 128 KiB with TLS).
_DIRECT_BYTES = 8 << 10
_PREFIX = struct.Struct(">cQQ")
_FRAME = b"f"  # a frame, or its last part
_PART = b"p"  # a part before the last one
_CONFIRM = b"c"
_PART_BYTES = 4 << 20
# of a connection; aiohttp takes only shorter ones
LARGEST_MESSAGE_BYTES = _PART_BYTES + _PREFIX.size + 1
_TURN_MESSAGES = 64  # read before other work has its turn
_TURN_BYTES = 1 << 20  # read before other work has its turn
_MOST_PINGS = 256  # of a connection in a second; they wait in memory without a limit


class Channel:
    """One side of the channel. All methods run on one event loop.

    Attributes:
        received: the number of the last frame that came.
        is_connected: whether a connection carries the frames now.
        error: why the channel was closed; None while it is open.
    """

    def __init__(self, on_frame: Callable[[bytes], None]) -> None:
        """Start without a connection.

        Args:
            on_frame: called with each frame; must not block, and may raise PeerFaultError to refuse
                it.
        """
        self.received = 0
        self.is_connected = False
        self._on_frame = on_frame
        self._sent = self._carried = 0
        self._socket: Any = None  # of the connection
        self._pushing: Any = None  # the socket on which a task is sending
        self._written = 0  # the number of the last frame that this socket was given
        self._confirmed_to_peer = self._owed_bytes = 0
        self._unconfirmed: deque[tuple[int, bytes, bytes]] = deque()  # number, kind and content
        self._bytes = self._confirmed = 0
        self._parts: list[bytes] = []  # of the frame that is coming
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.error: NodeLostError | None = None
        self._connection: asyncio.Task[None] | None = None

    async def send(self, frame: bytes) -> None:
        """Hand over a frame; wait while more than ``MOST_UNCONFIRMED_BYTES`` are on their way.

        Raises:
            ClusterError: the frame is larger than ``LARGEST_FRAME_BYTES``.
            NodeLostError: the channel was closed.
        """
        # it would end each connection that carries it
        if len(frame) + _PREFIX.size > LARGEST_FRAME_BYTES:
            most = (
                f"at most {LARGEST_FRAME_BYTES >> 20} MiB go between head and node at once, not "
                f"{len(frame)} bytes"
            )
            raise ClusterError(f"{most}; limit the output, or copy files by get and put")
        while self.error is None and not self._room.is_set():
            await self._room.wait()
        if self.error is not None:
            raise self.error
        self._keep(frame)
        if self._bytes <= _DIRECT_BYTES:
            # in this task: to wake another costs more than to send, which does not wait
            await self._push()
        else:
            self._changed.set()

    def send_soon(self, frame: bytes) -> None:
        """Hand over a small frame without waiting; does nothing after :meth:`close`."""
        if self.error is None:
            self._keep(frame)
            self._changed.set()

    def _keep(self, frame: bytes) -> None:
        last = max(0, len(frame) - 1) // _PART_BYTES * _PART_BYTES  # where the last part begins
        for begin in range(0, last, _PART_BYTES):
            self._sent += 1
            self._unconfirmed.append((self._sent, _PART, frame[begin : begin + _PART_BYTES]))
        self._sent += 1
        self._unconfirmed.append((self._sent, _FRAME, frame[last:]))
        self._bytes += len(frame)
        if self._bytes > MOST_UNCONFIRMED_BYTES:
            self._room.clear()

    async def carry(self, socket: Any, peer_received: int) -> None:  # noqa: ANN401 - aiohttp's server and client sockets
        """Send and receive over a connection until it ends; an earlier connection is dropped.

        Args:
            socket: an open WebSocket of aiohttp.
            peer_received: the number of the last frame that the other side has.

        Raises:
            PeerFaultError: the other side sent an invalid message.
        """
        self._carried += 1
        turn = self._carried
        if self._connection is not None:
            self._connection.cancel()
            await asyncio.wait([self._connection])
        if self.error is not None or turn != self._carried:  # a later one came meanwhile
            return
        mine = self._connection = asyncio.ensure_future(self._carry(socket, peer_received))
        try:
            await asyncio.wait([mine])
        finally:  # cancelled from outside
            mine.cancel()
        if not mine.cancelled() and (error := mine.exception()) is not None:
            raise error

    def check_received(self, number: int) -> None:
        """Check which frames the other side says that it has.

        Args:
            number: the number of the last one.

        Raises:
            PeerFaultError: it cannot have that many, or has confirmed more.
        """
        if not self._confirmed <= number <= self._sent:
            raise PeerFaultError(
                f"it has frame {number}, but {self._confirmed} to {self._sent} are possible"
            )

    def close(self, error: NodeLostError) -> None:
        """End the channel for good; waiting senders raise the error."""
        if self.error is None:
            self.error = error
            self._room.set()
            self._changed.set()
            if self._connection is not None:
                self._connection.cancel()

    async def _carry(self, socket: Any, peer_received: int) -> None:  # noqa: ANN401
        self.check_received(peer_received)
        self._confirm(peer_received)
        self._confirmed_to_peer = self._owed_bytes = 0
        self._socket = socket
        self._written = peer_received
        self.is_connected = True
        self._changed.set()
        writer = asyncio.ensure_future(self._write(socket))
        try:
            await self._read(socket)
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

    async def _read(self, socket: Any) -> None:  # noqa: ANN401
        """Take what comes until the connection ends; other work has its turns."""
        messages = 0
        size = 0
        pings = _Pings()
        async for message in socket:
            if message.type in (WSMsgType.PING, WSMsgType.PONG):
                pings.count()
                if message.type is WSMsgType.PING:
                    await socket.pong(message.data)
            elif message.type is not WSMsgType.BINARY or len(message.data) < _PREFIX.size:
                return
            else:
                self._take(message.data)
                if self._owes_much():
                    self._changed.set()
            messages, size = messages + 1, size + len(message.data)
            if messages >= _TURN_MESSAGES or size >= _TURN_BYTES:
                messages = size = 0
                # the socket may have thousands of messages, and does not wait for the next one
                await asyncio.sleep(0)

    def _take(self, data: bytes) -> None:
        kind, number, confirmed = _PREFIX.unpack_from(data)
        if not self._confirmed <= confirmed <= self._written:
            possible = f"{self._confirmed} to {self._written} are possible"
            raise PeerFaultError(f"it confirms frame {confirmed}, but {possible}")
        self._confirm(confirmed)
        if kind == _CONFIRM and number == 0 and len(data) == _PREFIX.size:
            return
        if kind not in (_FRAME, _PART) or not 0 < number <= self.received + 1:
            raise PeerFaultError(
                f"it sent frame {number} of kind {kind!r} after frame {self.received}"
            )
        if number == self.received + 1:  # else it came already, over an earlier connection
            part = data[_PREFIX.size :]
            is_last = kind == _FRAME
            self._check_part(part, is_last=is_last)
            self.received = number
            self._owed_bytes += len(data)
            self._parts.append(part)
            if is_last:
                parts, self._parts = self._parts, []
                self._on_frame(part if len(parts) == 1 else b"".join(parts))

    def _check_part(self, part: bytes, *, is_last: bool) -> None:
        if not is_last and len(part) != _PART_BYTES:
            raise PeerFaultError(f"it sent a part of {len(part)} bytes, not {_PART_BYTES}")
        if len(self._parts) * _PART_BYTES + len(part) > LARGEST_FRAME_BYTES:
            raise PeerFaultError(f"it sent a frame of more than {LARGEST_FRAME_BYTES} bytes")

    def _owes_much(self) -> bool:
        return (
            self.received - self._confirmed_to_peer >= CONFIRM_EACH
            or self._owed_bytes >= CONFIRM_BYTES
        )

    def _confirm(self, number: int) -> None:
        self._confirmed = number
        while self._unconfirmed and self._unconfirmed[0][0] <= number:
            self._bytes -= len(self._unconfirmed.popleft()[2])
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
        """Send the frames that this connection has not carried yet, unless another task is sending
        them.

        Return False if the connection ends: its reader sees that too, and the next connection
        carries the frames.
        """
        socket = self._socket
        if socket is None or self._pushing is socket:
            return True
        self._pushing = socket
        try:
            while socket is self._socket and self._unconfirmed and self._written < self._sent:
                self._written, kind, content = self._unconfirmed[
                    self._written + 1 - self._unconfirmed[0][0]
                ]
                await socket.send_bytes(self._prefix(kind, self._written) + content)
        except (OSError, ConnectionError):
            return False
        finally:
            if self._pushing is socket:
                self._pushing = None
                # this task was cancelled, maybe with frames of others to send
                if self._written < self._sent:
                    self._changed.set()
        return True

    def _prefix(self, kind: bytes, number: int) -> bytes:
        """Return the prefix of a message; it confirms all received frames."""
        self._confirmed_to_peer = self.received
        self._owed_bytes = 0
        return _PREFIX.pack(kind, number, self.received)


class _Pings:
    """Counts the pings and pongs of a connection."""

    def __init__(self) -> None:
        self._since = 0.0
        self._seen = 0

    def count(self) -> None:
        """Count one.

        Raises:
            PeerFaultError: there were too many within a second.
        """
        now = asyncio.get_running_loop().time()
        if now - self._since >= 1:
            self._since = now
            self._seen = 0
        self._seen += 1
        if self._seen > _MOST_PINGS:
            raise PeerFaultError(f"it sent more than {_MOST_PINGS} pings in a second")
