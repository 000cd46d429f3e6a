"""The streams of one command: its input, from bytes, a file, a pipe or any object with ``read``,
and its output, read as fast as it writes and kept within a limit.

The thread that runs the exec reads the source of the input, and only when the read cannot block, so
that deadlines hold. Sources that cannot be polled are read in a thread of their own.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import select
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from hyperruntime.exec.lane import Lane
from hyperruntime.exec.options import OutputCallback, Stream

_CHUNK_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_NAMES: dict[Stream, str] = {"stdout": "o", "stderr": "e"}  # the FIFOs of a lane
_PIPE_BYTES = 65536
_START_BYTES = 8192
_NOTICE = b"\n[%d bytes of output dropped here]\n"
_NOTICE_FORM = re.compile(rb"\n\[([0-9]+) bytes of output dropped here\]\n")
_CUT_BYTES = 3  # the most bytes of a character that a cut leaves; source: RFC 3629, section 3
_GRACE_S = 0.25  # how long children of a command may still write after its end


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


class OutputBuffer:
    """Collects chunks; past ``limit_bytes`` it keeps the first and the last half, in bounded
    memory.

    Attributes:
        total_bytes: number of bytes written, kept or not.
        start: the first 8 KiB, even if the limit is lower.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Keep at most ``limit_bytes`` (at least 2)."""
        self.total_bytes = 0
        self.start = b""
        self._head_limit = max(1, (limit_bytes + 1) // 2)
        self._tail_limit = max(1, limit_bytes - self._head_limit)
        self._head = bytearray()
        self._tail = bytearray()

    @property
    def truncated(self) -> bool:
        """Whether bytes were dropped."""
        return self.total_bytes > self._head_limit + self._tail_limit

    def write(self, chunk: bytes) -> None:
        """Add a chunk."""
        self.total_bytes += len(chunk)
        if len(self.start) < _START_BYTES:
            self.start += chunk[: _START_BYTES - len(self.start)]
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    def value(self) -> bytes:
        """Return all bytes, or the head, one line with the number of dropped bytes, and the tail.

        A character in UTF-8 is kept whole or dropped.
        """
        if not self.truncated:
            return bytes(self._head + self._tail)
        head = whole_end(bytes(self._head))
        tail = whole_start(bytes(self._tail[-self._tail_limit :]))
        return head + _NOTICE % (self.total_bytes - len(head) - len(tail)) + tail


def split_kept(value: bytes, limit_bytes: int) -> tuple[bytes, int, bytes] | None:
    """Return the head, the number of dropped bytes, and the tail of a truncated output; None if
    nothing was dropped.

    Args:
        value: as :meth:`OutputBuffer.value` returned it.
        limit_bytes: the limit of that buffer.
    """
    notice = _NOTICE_FORM.search(value, max(0, (limit_bytes + 1) // 2 - _CUT_BYTES))
    return (
        None if notice is None else (value[: notice.start()], int(notice[1]), value[notice.end() :])
    )


def whole_end(data: bytes) -> bytes:
    """Return data without a character that its end cuts, if it is UTF-8."""
    for at in range(len(data) - 1, max(len(data) - _CUT_BYTES - 1, -1), -1):
        byte = data[at]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:at] if at + length > len(data) else data
    return data


def whole_start(data: bytes) -> bytes:
    """Return data without the rest of a character that its start cuts, if it is UTF-8."""
    return re.sub(rb"\A[\x80-\xbf]{1,3}", b"", data)


class OutputStreams:
    """The standard output and error of one command, driven by the poll loop of its exec.

    Attributes:
        buffers: the output that was kept.
        held: the beginning of a stream that is held back, see :meth:`expect`.
    """

    def __init__(self, limit_bytes: int, on_output: OutputCallback | None) -> None:
        """Prepare; no stream is open.

        Args:
            limit_bytes: number of bytes of each stream that are kept.
            on_output: called with each chunk; None means no callback.
        """
        self.buffers: dict[Stream, OutputBuffer] = {
            name: OutputBuffer(limit_bytes) for name in _NAMES
        }
        self._on_output = on_output
        self._open: dict[int, Stream] = {}
        self._wide: set[int] = set()
        self._poll: select.poll | None = None
        self._expected: tuple[Stream, Callable[[bytes], bool]] | None = None
        self.held = b""

    @property
    def is_watched(self) -> bool:
        """Whether the caller wants each chunk at once."""
        return self._on_output is not None

    def __contains__(self, descriptor: int) -> bool:
        """Return whether a descriptor is one of the open streams."""
        return descriptor in self._open

    def open(self, lane: Lane) -> None:
        """Open the streams of a lane; they hold what a command writes, up to 64 KiB, until
        :meth:`attend` or the end.

        Raises:
            OSError: no file descriptors are left.
        """
        self._poll = None
        self._expected = None
        self.held = b""
        for name, letter in _NAMES.items():
            self._open[lane.open_stream(letter)] = name

    def expect(self, name: Stream, may_be: Callable[[bytes], bool]) -> None:
        """Hold back the beginning of a stream while it may be a message; :meth:`settle` decides.

        Args:
            name: the stream.
            may_be: whether the first bytes of the stream may belong to the message.
        """
        self._expected = name, may_be

    def settle(self, instead: bytes | None) -> None:
        """Hand over what is held back, or something instead of it.

        Raises:
            CallerError: the callback failed.
        """
        expected, held, self._expected, self.held = self._expected, self.held, None, b""
        if expected is not None and (chunk := held if instead is None else instead):
            self._hand_over(expected[0], chunk)

    def attend(self, poll: select.poll) -> None:
        """Register the open streams with a poll loop."""
        self._poll = poll
        for descriptor in self._open:
            poll.register(descriptor, select.POLLIN)

    def read(self, descriptor: int) -> bool:
        """Read once; return whether there was data.

        Raises:
            CallerError: the callback failed.
        """
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES if descriptor in self._wide else _PIPE_BYTES)
        except BlockingIOError:
            return False
        name = self._open[descriptor]
        if not chunk:
            if self._poll is not None:
                self._poll.unregister(descriptor)
            del self._open[descriptor]
            self._wide.discard(descriptor)
            os.close(descriptor)
            return False
        if len(chunk) == _PIPE_BYTES and descriptor not in self._wide:
            self._wide.add(descriptor)
            widen(descriptor)
        if self._expected is not None and self._expected[0] == name:
            self.held += chunk
            if not self._expected[1](self.held):
                self.settle(None)
            return True
        self._hand_over(name, chunk)
        return True

    def _hand_over(self, name: Stream, chunk: bytes) -> None:
        self.buffers[name].write(chunk)
        if self._on_output is not None:
            try:
                self._on_output(name, chunk)
            except Exception as error:
                raise CallerError(error) from error

    def drain(self) -> None:
        """Read the remaining output, and for a moment the output that children of the command still
        write.
        """
        end = time.monotonic() + _GRACE_S
        while self._open:
            moved = [self.read(descriptor) for descriptor in tuple(self._open)]
            if any(moved) and time.monotonic() < end + 1:
                continue
            remaining = end - time.monotonic()
            if not self._open or remaining <= 0:
                return
            poll = select.poll()
            for descriptor in self._open:
                poll.register(descriptor, select.POLLIN)
            poll.poll(int(remaining * 1000) + 1)

    def renew(self, lane: Lane, discard: Callable[[int], None]) -> None:
        """Make the lane ready for the next exec, even if a background process holds the streams of
        this one.

        Args:
            lane: the lane of the streams.
            discard: takes a stream that is still held, to read and discard its data.
        """
        for descriptor, name in tuple(self._open.items()):
            lane.renew_stream(_NAMES[name])
            del self._open[descriptor]
            discard(descriptor)

    def close(self) -> None:
        """Close the streams."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()
        self._wide.clear()
