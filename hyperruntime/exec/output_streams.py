"""Read the output of one running command as fast as it writes, and keep it within a limit."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable

from hyperruntime.exec.lane import Lane
from hyperruntime.exec.options import OutputCallback, Stream
from hyperruntime.exec.stdin import CallerError, widen

_NAMES: dict[Stream, str] = {"stdout": "o", "stderr": "e"}  # the FIFOs of a lane
_CHUNK_BYTES = 1 << 20
_PIPE_BYTES = 65536
_START_BYTES = 8192
_NOTICE = b"\n[%d bytes of output dropped here]\n"
_NOTICE_FORM = re.compile(rb"\n\[([0-9]+) bytes of output dropped here\]\n")
_CUT_BYTES = 3  # the most bytes of a character that a cut leaves; source: RFC 3629, section 3
_GRACE_S = 0.25  # how long children of a command may still write after its end


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
