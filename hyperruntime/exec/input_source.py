"""What a command's standard input is fed from: bytes, a file, a pipe, or any object with ``read``.

Everything is read by the thread that runs the exec, and only when that cannot block, so that a deadline holds
whatever the source does. An object of which nobody can tell is read by a thread of its own.
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
    """Something of the caller's failed: its source of input, or its callback; ``cause`` is what it raised."""

    def __init__(self, cause: Exception) -> None:
        """Keep the cause."""
        super().__init__(str(cause))
        self.cause = cause


class InputSource:
    """One source of input.

    Attributes:
        descriptor: becomes readable when :meth:`read` will not block; None when it never does.
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
        """Return the next chunk, or nothing at the end.

        Raises:
            CallerError: the source failed.
            BlockingIOError: nothing is there yet.
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
        """Whether :meth:`read` need not wait for the descriptor."""
        return self.descriptor is None or bool(self._first)

    def close(self) -> None:
        """Give up a thread that still reads; the caller's source stays open."""
        if self._pump is not None:
            self._pump.close()


class _Pump:
    """Reads a source in a thread and hands it on through a socket, which a forked child cannot keep open."""

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
                    break  # nobody takes it any more
        except Exception as error:  # noqa: BLE001 - handed to the thread that runs the exec
            self.error = error
        finally:
            try:
                self._writer.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._writer.close()

    def close(self) -> None:
        try:
            self.reader.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.reader.close()


def checked(chunk: object) -> bytes:
    """Return a chunk that a source gave.

    Raises:
        TypeError: it is text, or no bytes at all.
    """
    if chunk is None:
        return b""
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise TypeError(f"input must be bytes or a file opened in binary mode; its read() gave {type(chunk).__name__}")
    return bytes(chunk)


def _is_regular(source: object) -> bool:
    return isinstance(source, (io.FileIO, io.BufferedReader, io.BufferedRandom)) and stat.S_ISREG(_mode(source))


def _own_descriptor(source: object) -> int | None:
    """Return the descriptor of a pipe, socket or terminal whose bytes are just what the source would give."""
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
    """Take what a buffered reader has read ahead: there is no other way to ask than a read that may not block."""
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
