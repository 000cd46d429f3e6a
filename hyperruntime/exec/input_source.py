"""The source of a command's standard input: bytes, a file, a pipe, or any object with ``read``.

The thread that runs the exec reads the source, and only when the read cannot block, so that deadlines hold. Sources
that cannot be polled are read in a thread of their own.
"""

from __future__ import annotations

import fcntl
import io
import os
import socket
import stat
import threading
from typing import BinaryIO

_CHUNK_BYTES = 1 << 20


class CallerError(Exception):
    """The caller's input source or callback raised an exception, which is in ``cause``."""

    def __init__(self, cause: Exception) -> None:
        """Keep the cause."""
        super().__init__(str(cause))
        self.cause = cause


class InputSource:
    """One source of input.

    Attributes:
        descriptor: readable when :meth:`read` will not block; None if it never blocks.
    """

    def __init__(self, source: bytes | BinaryIO) -> None:
        """Take a source; nothing is read yet."""
        self.descriptor: int | None = None
        self._source: BinaryIO | None = None
        self._pump: _Pump | None = None
        self._first = b""
        if isinstance(source, (bytes, bytearray, memoryview)):
            self._source = io.BytesIO(source)
        elif isinstance(source, io.BytesIO) or _is_regular(source):
            self._source = source
        elif (descriptor := _own_descriptor(source)) is not None:
            self.descriptor = descriptor
            self._first = _buffered(source, descriptor)
        else:
            self._pump = _Pump(source)
            self.descriptor = self._pump.reader.fileno()

    def read(self) -> bytes:
        """Return the next chunk, or ``b""`` at the end.

        Raises:
            CallerError: the source failed.
            BlockingIOError: no data is available yet.
        """
        if self._first:
            first, self._first = self._first, b""
            return first
        try:
            if self.descriptor is None:
                assert self._source is not None
                return checked(self._source.read(_CHUNK_BYTES))
            chunk = os.read(self.descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            raise
        except Exception as error:
            raise CallerError(error) from error
        if not chunk and self._pump is not None and self._pump.error is not None:
            raise CallerError(self._pump.error)
        return chunk

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`read` can be called without polling the descriptor."""
        return self.descriptor is None or bool(self._first)

    def close(self) -> None:
        """Disconnect from the reading thread, if there is one; the caller's source stays open."""
        if self._pump is not None:
            self._pump.close()


class _Pump:
    """Reads a source in a thread and passes the data through a socket, which a forked child cannot keep open."""

    def __init__(self, source: BinaryIO) -> None:
        self.error: Exception | None = None
        self.reader, self._writer = socket.socketpair()
        self._read = getattr(source, "read1", None) or source.read
        threading.Thread(target=self._run, name="hyperruntime-input", daemon=True).start()

    def _run(self) -> None:
        try:
            while chunk := checked(self._read(_CHUNK_BYTES)):
                try:
                    self._writer.sendall(chunk)
                except OSError:
                    break  # the reader has closed its end
        except Exception as error:  # noqa: BLE001 - handed to the thread that runs the exec
            self.error = error
        finally:
            shut_down(self._writer)
            self._writer.close()

    def close(self) -> None:
        shut_down(self.reader)
        self.reader.close()


def shut_down(end: socket.socket) -> None:
    """Shut a socket down in both directions, also for forked children that hold it."""
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end has done it


def checked(chunk: object) -> bytes:
    """Return the result of a source's ``read`` as bytes; None counts as the end.

    Raises:
        TypeError: it is text or another type.
    """
    if chunk is None:
        return b""
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise TypeError(f"input must be bytes or a file in binary mode; its read() returned {type(chunk).__name__}")
    return bytes(chunk)


def _is_regular(source: object) -> bool:
    return isinstance(source, (io.FileIO, io.BufferedReader, io.BufferedRandom)) and stat.S_ISREG(_mode(source))


def _own_descriptor(source: object) -> int | None:
    """Return the descriptor of a pipe, socket or terminal; None if the source does not read it unchanged."""
    raw = source.raw if isinstance(source, io.BufferedReader) else source
    if not isinstance(raw, (io.FileIO, socket.SocketIO)):
        return None
    mode = _mode(raw)
    return raw.fileno() if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) else None


def _mode(source: io.IOBase) -> int:
    try:
        return os.fstat(source.fileno()).st_mode
    except (OSError, ValueError):
        return 0


def _buffered(source: object, descriptor: int) -> bytes:
    """Take the data that a buffered reader has read ahead; only a non-blocking read returns it."""
    if not isinstance(source, io.BufferedReader):
        return b""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        return source.read1(_CHUNK_BYTES) or b""
    except BlockingIOError:
        return b""
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
