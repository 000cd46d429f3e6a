"""The standard input of a command: read from bytes, a file, a pipe or any object with ``read``,
written to its lane.

The thread that runs the exec reads the source, and only when the read cannot block, so that
deadlines hold. Sources that cannot be polled are read in a thread of their own.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from hyperruntime.exec.lane import Lane

_CHUNK_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


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
        given = io.BytesIO(source) if isinstance(source, (bytes, bytearray, memoryview)) else source
        self.descriptor: int | None = None
        self._pump: _Pump | None = None
        self._first = b""
        self._read: Callable[[int], object] = given.read
        if isinstance(given, io.BytesIO) or _is_regular(given):
            return
        self.descriptor = _own_descriptor(given)
        if self.descriptor is not None:
            self._first = _buffered(given, self.descriptor)
        else:
            self._pump = _Pump(given)
            self.descriptor = self._pump.reader.fileno()
        self._read = partial(os.read, self.descriptor)

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
            chunk = checked(self._read(_CHUNK_BYTES))
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


class Stdin:
    """The standard input of one running command, driven by the poll loop of its exec.

    Attributes:
        has_ended: whether nothing more is read from the source.
    """

    def __init__(self, source: InputSource, lane: Lane, poll: select.poll) -> None:
        """Prepare; nothing is registered with the poll loop before :meth:`start`.

        Args:
            source: source of the input.
            lane: lane of the command.
            poll: poll object of the exec's loop.
        """
        self._source = source
        self._lane = lane
        self._poll = poll
        self._pending = memoryview(b"")
        self.has_ended = False

    def start(self) -> None:
        """Start writing; called when the command has opened its input."""
        if self._lane.input is None or (descriptor := self._lane.hand_over_input()) is None:
            self.has_ended = True
            return
        widen(descriptor)
        if self._source.is_ready:
            self._poll.register(descriptor, select.POLLOUT)
        elif self._source.descriptor is not None:
            self._poll.register(self._source.descriptor, select.POLLIN)

    def on_event(self, descriptor: int, event: int) -> None:
        """Handle a poll event; events of other descriptors are ignored.

        Raises:
            CallerError: the input source failed.
        """
        if descriptor == self._lane.input:
            self._write(descriptor, event)
        elif descriptor == self._source.descriptor:
            self._fill(descriptor)

    def _fill(self, descriptor: int) -> None:
        """Read one chunk, then wait until the command can read it."""
        try:
            self._pending = memoryview(self._source.read())
        except BlockingIOError:
            return
        self._poll.unregister(descriptor)
        if not self._pending:
            self._end()
        elif self._lane.input is not None:
            self._poll.register(self._lane.input, select.POLLOUT)

    def _write(self, target: int, event: int) -> None:
        if not self._pending:
            self._pending = memoryview(self._source.read())
        if not self._pending or event & (select.POLLERR | select.POLLNVAL):
            self._end()
            return
        try:
            self._pending = self._pending[os.write(target, self._pending) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._end()
            return
        if not self._pending and not self._source.is_ready and self._source.descriptor is not None:
            self._poll.unregister(target)
            self._poll.register(self._source.descriptor, select.POLLIN)

    def _end(self) -> None:
        self.has_ended = True
        for descriptor in (self._lane.input, self._source.descriptor):
            if descriptor is not None:
                with suppress(KeyError):
                    self._poll.unregister(descriptor)
        self._lane.close_input()


class _Pump:
    """Reads a source in a thread and passes the data through a socket, which a forked child cannot
    keep open.
    """

    def __init__(self, source: BinaryIO) -> None:
        self.error: Exception | None = None
        self.reader, self._writer = socket.socketpair()
        self._writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK_BYTES)
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
            _shut_down(self._writer)
            self._writer.close()

    def close(self) -> None:
        _shut_down(self.reader)
        self.reader.close()


def widen(descriptor: int) -> None:
    """Enlarge the buffer of a FIFO to 1 MiB if the kernel allows it."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _CHUNK_BYTES)


def _shut_down(end: socket.socket) -> None:
    """Shut a socket down in both directions, also for forked children that hold it."""
    with suppress(OSError):  # the other end has done it
        end.shutdown(socket.SHUT_RDWR)


def checked(chunk: object) -> bytes:
    """Return the result of a source's ``read`` as bytes; None counts as the end.

    Raises:
        TypeError: it is text or another type.
    """
    if chunk is None:
        return b""
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise TypeError(
            "input must be bytes or a file in binary mode; its read() returned "
            f"{type(chunk).__name__}"
        )
    return bytes(chunk)


def _is_regular(source: object) -> bool:
    return isinstance(source, (io.FileIO, io.BufferedReader, io.BufferedRandom)) and stat.S_ISREG(
        _mode(source)
    )


def _own_descriptor(source: object) -> int | None:
    """Return the descriptor of a pipe, socket or terminal; None if the source does not read it
    unchanged.
    """
    raw = source.raw if isinstance(source, io.BufferedReader) else source
    if not isinstance(raw, (io.FileIO, socket.SocketIO)):
        return None
    mode = _mode(raw)
    return (
        raw.fileno() if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) else None
    )


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
