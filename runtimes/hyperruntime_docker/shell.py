"""Attach a shell over a hijacked connection of the Engine API.

The daemon sends both output streams interleaved, in frames with an 8-byte header. Input goes to the
same connection: its half-close, or the death of this process, is end-of-file for the shell.

Source: Engine API, ContainerAttach, "Stream format".
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.host.engine_limits import limit_s
from hyperruntime_docker.args import NAME

_HEADER = struct.Struct(">BxxxL")
_CHUNK_BYTES = 64 * 1024
_STDERR = 2
_TAIL_CHUNKS = 8
_TAIL_BYTES = 2000


class Frames:
    """Splits the bytes of a connection into the ``(stream, data)`` parts of its frames; stream 2 is
    stderr.
    """

    def __init__(self) -> None:
        """Begin before the first frame."""
        self._rest = b""
        self._stream = 0
        self._left = 0

    def split(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the parts that the next chunk completes."""
        # the rest is a part of a header
        data = self._rest + chunk
        at = 0
        self._rest = b""
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                at, self._left = at + len(part), self._left - len(part)
                yield self._stream, part
            elif len(data) - at >= _HEADER.size:
                self._stream, self._left = _HEADER.unpack_from(data, at)
                at += _HEADER.size
            else:
                self._rest, at = data[at:], len(data)


class EndTurn:
    """Lets the containers of this process end one after the other.

    If several end at once, Docker before 23 can lock up, and then answers nothing until it is
    restarted. Source: pull request 42545 of moby.
    """

    def __init__(self) -> None:
        """Begin without the turn."""
        self._changing = threading.Lock()
        self._held: threading.Lock | None = None

    def take(self) -> None:
        """Wait for the turn, a while; idempotent."""
        lock = _one_at_a_time.get()
        if self._held is None and lock.acquire(timeout=limit_s(NAME, "turn")):
            self._held = lock

    def give_back(self) -> None:
        """Let the next container end; idempotent."""
        with self._changing:
            held, self._held = self._held, None
        if held is not None:
            held.release()


_one_at_a_time = PerProcess(threading.Lock)


class SocketShell:
    """An attached shell on a connection; an :class:`~hyperruntime.attached_shell.AttachedShell`.

    Attributes:
        input: file descriptor of the connection.
        output: the same.
    """

    def __init__(
        self,
        connection: socket.socket,
        early: bytes,
        exit_code: Callable[[float], int | None],
        release: Callable[[], None] = lambda: None,
        turn: EndTurn | None = None,
    ) -> None:
        """Take over a connection.

        Args:
            connection: its only file descriptor; blocking.
            early: data that were already read from it.
            exit_code: called when the stream has ended, with the seconds that it may take; returns
                the exit code of the shell's process, or None if it is not known yet.
            release: called when the exit code is not needed any more.
            turn: taken before the shell is told to end, and given back when it has ended.
        """
        self._connection = connection
        self._early = early
        self._exit_code = exit_code
        self._release = release
        self._turn = turn
        self._code: int | None = None
        self._frames = Frames()
        self._tail = deque[bytes](maxlen=_TAIL_CHUNKS)
        self._ended = threading.Event()
        self._asking = threading.Lock()
        self.input = self.output = connection.fileno()

    @property
    def last_words(self) -> str:
        """The end of the shell's standard error."""
        return b"".join(self._tail)[-_TAIL_BYTES:].decode(errors="replace").strip()

    def read(self) -> bytes:
        """Return the next output of both streams; see
        :class:`~hyperruntime.attached_shell.AttachedShell`.

        Raises:
            BlockingIOError: there is nothing to read, or no whole frame yet.
        """
        early, self._early = self._early, b""
        chunk = early or self._connection.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
        parts = list(self._frames.split(chunk))
        self._tail.extend(data for stream, data in parts if stream == _STDERR)
        if chunk and not parts:
            raise BlockingIOError
        return b"".join(data for _, data in parts)

    def close_input(self) -> None:
        """Send end-of-file to the shell, when it may end; idempotent."""
        if self._turn is not None and not self._ended.is_set():
            self._turn.take()
        self._shutdown(socket.SHUT_WR)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None while the shell runs or if the code is unknown."""
        deadline = time.monotonic() + timeout_s
        if (
            self._code is None
            and self._ended.wait(timeout_s)
            and self._asking.acquire(timeout=timeout_s)
        ):
            try:
                if self._code is None:
                    self._code = self._exit_code(max(0.0, deadline - time.monotonic()))
                if self._turn is not None and self._code is not None:
                    self._turn.give_back()
            finally:
                self._asking.release()
        return self._code

    def close(self) -> None:
        """Disconnect; the reader of the output sees end-of-file. Idempotent."""
        self._shutdown(socket.SHUT_RDWR)
        self._release()
        if self._turn is not None:
            self._turn.give_back()

    def close_output(self) -> None:
        """Close the connection, after the last read; idempotent."""
        self._connection.close()
        self._ended.set()

    def _shutdown(self, how: int) -> None:
        try:
            self._connection.shutdown(how)
        except OSError:
            pass  # the daemon has disconnected, or it is closed


def take_over(raw: Any) -> tuple[socket.socket, bytes]:  # noqa: ANN401 - the SDK's file-like socket
    """Return the only file descriptor of a hijacked connection, blocking, and the data already read
    from it.

    The SDK's own copy of the descriptor, inside a response, is closed: a forked child that inherits
    it would keep the container alive.
    """
    early = _buffered(raw)
    connection = socket.socket(fileno=os.dup(raw.fileno()))
    connection.setblocking(True)
    raw._response.close()  # noqa: SLF001 - where the SDK keeps it
    return connection, early


def read_text(
    connection: socket.socket, early: bytes, timeout_s: float, last: str = ""
) -> tuple[str, bool]:
    """Return the text of both streams until they end, and whether the timeout passed without data
    before that.

    Args:
        connection: a connection that is attached to a container.
        early: data that were already read from it.
        timeout_s: the longest wait for data, in seconds.
        last: stop reading after this text; "" means never.
    """
    connection.settimeout(timeout_s)
    frames = Frames()
    chunk = early
    said = bytearray()
    is_late = False
    wanted = last.encode()
    try:
        while chunk := chunk or connection.recv(_CHUNK_BYTES):
            searched = max(0, len(said) - len(wanted))
            said += b"".join(data for _, data in frames.split(chunk))
            if wanted and said.find(wanted, searched) >= 0:
                break
            chunk = b""
    except TimeoutError:
        is_late = True
    except OSError:
        pass
    return said.decode(errors="replace"), is_late


def _buffered(raw: Any) -> bytes:  # noqa: ANN401
    """Return the data that the HTTP client read beyond the response's head; an exec's first output
    may be there.
    """
    raw._sock.settimeout(0)  # noqa: SLF001 - otherwise an empty buffer waits for the socket
    reader = raw._response.raw._fp.fp  # noqa: SLF001 - the SDK accesses the socket in the same way
    return bytes(reader.peek(_CHUNK_BYTES) or b"")
