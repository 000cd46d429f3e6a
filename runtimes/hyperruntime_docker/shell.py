"""Attach a shell over a hijacked connection of the Engine API.

The daemon sends both output streams interleaved, in frames with an 8-byte header. One thread splits them into two
pipes. Input goes to the connection itself: its half-close, or the death of this process, is end-of-file for the shell.

Source: Engine API, ContainerAttach, "Stream format".
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

_HEADER = struct.Struct(">BxxxL")
_CHUNK_BYTES = 64 * 1024
_STDERR = 2
_TAIL_CHUNKS = 8
_TAIL_BYTES = 2000
_DRAIN_TIMEOUT_S = 2.0


def split_frames(connection: socket.socket, early: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the ``(stream, data)`` parts of a connection until it ends; stream 1 is stdout, 2 is stderr.

    Args:
        connection: a connection that is attached to a container.
        early: data that were already read from it.

    Raises:
        OSError: the connection is broken, or its timeout has passed.
    """
    buffer, stream, left = early, 0, 0
    while buffer or (buffer := connection.recv(_CHUNK_BYTES)):
        if left:
            data, buffer = buffer[:left], buffer[left:]
            left -= len(data)
            yield stream, data
        elif len(buffer) >= _HEADER.size:
            stream, left = _HEADER.unpack_from(buffer)
            buffer = buffer[_HEADER.size :]
        elif more := connection.recv(_CHUNK_BYTES):
            buffer += more
        else:
            return


class SocketShell:
    """An attached shell on a connection; an :class:`~hyperruntime.attached_shell.AttachedShell`.

    Attributes:
        input: file descriptor of the connection, for writing.
        output: read end of the pipe of the shell's standard output.
        errors: read end of the pipe of its standard error.
    """

    def __init__(self, connection: socket.socket, early: bytes, exit_code: Callable[[], int | None]) -> None:
        """Take over a connection.

        Args:
            connection: its only file descriptor; blocking.
            early: data that were already read from it.
            exit_code: called when the stream has ended; blocks until the shell's process has ended and returns its exit
                code, or None if that is unknown.
        """
        self._connection, self._exit_code = connection, exit_code
        self._code: int | None = None
        self._tail: deque[bytes] = deque(maxlen=_TAIL_CHUNKS)
        self._drained, self._ended = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self.input = connection.fileno()
        self.output, self._out = os.pipe()
        self.errors, self._err = os.pipe()
        self._read_ends = [self.output, self.errors]
        threading.Thread(target=self._serve, args=(early,), name="hyperruntime-docker", daemon=True).start()

    @property
    def last_words(self) -> str:
        """The end of the shell's standard error."""
        return b"".join(self._tail)[-_TAIL_BYTES:].decode(errors="replace").strip()

    def close_input(self) -> None:
        """Send end-of-file to the shell; idempotent."""
        self._shutdown(socket.SHUT_WR)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None while the shell runs or if the code is unknown."""
        return self._code if self._ended.wait(timeout_s) else None

    def close(self) -> None:
        """Close the connection; readers of the output see end-of-file. Idempotent."""
        self._shutdown(socket.SHUT_RDWR)
        self._drained.wait(_DRAIN_TIMEOUT_S)
        self._connection.close()

    def close_output(self) -> None:
        """Close the read ends, after the last read; idempotent."""
        with self._lock:
            ends, self._read_ends = self._read_ends, []
        for descriptor in ends:
            os.close(descriptor)

    def _shutdown(self, how: int) -> None:
        try:
            self._connection.shutdown(how)
        except OSError:
            pass  # the daemon has disconnected, or it is closed

    def _serve(self, early: bytes) -> None:
        try:
            for stream, data in split_frames(self._connection, early):
                if stream == _STDERR:
                    self._tail.append(data)
                _write_all(self._err if stream == _STDERR else self._out, data)
        except OSError:
            pass  # the daemon has disconnected
        finally:
            os.close(self._err)
            os.close(self._out)
            self._drained.set()
        self._code = self._exit_code()
        self._ended.set()


def take_over(raw: Any) -> tuple[socket.socket, bytes]:  # noqa: ANN401 - the SDK's file-like socket
    """Return the only file descriptor of a hijacked connection, blocking, and the data already read from it.

    The SDK's own copy of the descriptor, inside a response, is closed: a forked child that inherits it would keep the
    container alive.
    """
    early = _buffered(raw)
    connection = socket.socket(fileno=os.dup(raw.fileno()))
    connection.setblocking(True)
    raw._response.close()  # noqa: SLF001 - where the SDK keeps it
    return connection, early


def read_text(connection: socket.socket, early: bytes, timeout_s: float, last: str = "") -> str:
    """Return the text of both streams until they end, or until the timeout passes without data.

    Args:
        connection: a connection that is attached to a container.
        early: data that were already read from it.
        timeout_s: the longest wait for data, in seconds.
        last: stop reading after this text; "" means never.
    """
    connection.settimeout(timeout_s)
    said = b""
    try:
        for _, data in split_frames(connection, early):
            said += data
            if last and last.encode() in said:
                break
    except OSError:
        pass
    return said.decode(errors="replace")


def _buffered(raw: Any) -> bytes:  # noqa: ANN401
    """Return the data that the HTTP client read beyond the response's head; an exec's first output may be there."""
    raw._sock.settimeout(0)  # noqa: SLF001 - otherwise an empty buffer waits for the socket
    reader = raw._response.raw._fp.fp  # noqa: SLF001 - the SDK accesses the socket in the same way
    return bytes(reader.peek(_CHUNK_BYTES) or b"")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except BrokenPipeError:
        pass  # the reader has closed its end; the connection is still drained
