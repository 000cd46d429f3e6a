"""The host side of a copy: make the archive that a command reads, or extract the archive that a
command writes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO, cast

from hyperruntime.errors import TransferError, UnsafeArchiveError
from hyperruntime.transfer.extract import PADDING_BYTES, ExtractLimits, ExtractReport, extract_tree
from hyperruntime.transfer.tar_writer import read_tree

_SEND_BYTES = 1 << 16
_QUEUE_BYTES = 4 << 20


class LateError(Exception):
    """The deadline passed while a chunk waited for the extraction on the host."""


class _AbandonedError(Exception):
    """The extraction was cancelled."""


class Sender:
    """An archive of a tree on the host, made while a command reads it as its standard input."""

    def __init__(self, source: str | os.PathLike[str], arcname: str) -> None:
        """Prepare; nothing is read yet.

        Args:
            source: path of the tree.
            arcname: its name in the archive.
        """
        self._source = source
        self._chunks = read_tree(source, arcname)

    def read(self, _: int) -> bytes:
        """Return the next part of the archive, or ``b""`` at its end; small entries are sent
        together.

        Raises:
            TransferError: the tree cannot be read.
        """
        parts: list[bytes] = []
        size = 0
        try:
            while size < _SEND_BYTES and (chunk := next(self._chunks, b"")):
                parts.append(chunk)
                size += len(chunk)
        except Exception as error:
            raise TransferError(f"cannot read {os.fspath(self._source)!r}: {error}") from error
        return b"".join(parts)


class Receiver:
    """Extracts an archive in a thread while a command writes it chunk by chunk.

    Attributes:
        cancel_fd: made readable when the extraction fails, so that the caller does not wait for a
            command that may never end.
        error: the error that stopped the extraction, or None.
        report: the report of a complete extraction, or None.
    """

    def __init__(
        self, target: str | os.PathLike[str], limits: ExtractLimits, cancel_fd: int | None
    ) -> None:
        """Store the settings; nothing runs yet.

        Args:
            target: the path to create.
            limits: limits of the archive.
            cancel_fd: event of the caller that also cancels the command; None makes one.
        """
        self.error: Exception | None = None
        self.report: ExtractReport | None = None
        self._target = target
        self._limits = limits
        self._owns_event = cancel_fd is None
        self.cancel_fd = os.eventfd(0) if cancel_fd is None else cancel_fd
        self._chunks = _Chunks()
        self._thread = threading.Thread(target=self._extract, name="hyperruntime-get", daemon=True)

    def start(self, timeout_s: float | None) -> None:
        """Start the thread that extracts; ``timeout_s`` seconds from now, :meth:`take` stops
        waiting (None: never).
        """
        self._chunks.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._thread.start()

    def take(self, stream: str, chunk: bytes) -> None:
        """Queue a chunk of the command's standard output, unless the extraction failed; other
        streams are ignored.

        Args:
            stream: name of the stream.
            chunk: its next bytes.

        Raises:
            LateError: the deadline passed, and the queue is still full.
        """
        if stream == "stdout":
            self._chunks.put(chunk)

    def finish(self) -> None:
        """Wait until all chunks are extracted and the tree is installed."""
        self._chunks.end()
        _join(self._thread)

    def stop(self) -> None:
        """Cancel the extraction unless it has finished, and wait for the thread."""
        self._chunks.abandon()
        if self._thread.ident is not None:
            _join(self._thread)
        if self._owns_event:
            os.close(self.cancel_fd)

    def _extract(self) -> None:
        try:
            self.report = extract_tree(
                cast(BinaryIO, self._chunks),
                Path(os.fsdecode(self._target)),
                limits=self._limits,
                before_install=self._chunks.check_end,
            )
        except _AbandonedError:
            pass
        except Exception as error:  # noqa: BLE001 - handed to the calling thread
            self.error = error
            os.eventfd_write(self.cancel_fd, 1)
        finally:
            self._chunks.abandon()


class _Chunks:
    """A bounded queue of bytes between two threads, read like an unbuffered file; a pipe would copy
    them twice.

    Attributes:
        deadline: monotonic time in seconds at which :meth:`put` stops waiting; None for no
            deadline.
    """

    def __init__(self) -> None:
        self.deadline: float | None = None
        self._queue: deque[memoryview] = deque()
        self._bytes = 0
        self._ended = self._abandoned = self._complete = False
        self._changed = threading.Condition()

    def put(self, chunk: bytes) -> None:
        """Add a chunk; wait while the queue is full.

        Raises:
            LateError: the deadline passed.
        """
        with self._changed:
            while self._bytes > _QUEUE_BYTES and not (self._abandoned or self._complete):
                remaining = None if self.deadline is None else self.deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise LateError
                self._changed.wait(remaining)
            if not self._abandoned:
                self._queue.append(memoryview(chunk))
                self._bytes += len(chunk)
                self._changed.notify()

    def end(self) -> None:
        """Mark the end of the chunks."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def abandon(self) -> None:
        """Drop all chunks, and cancel the reader."""
        with self._changed:
            self._abandoned = True
            self._queue.clear()
            self._changed.notify()

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer with at least one byte and return the count; 0 at the end.

        Raises:
            _AbandonedError: the extraction was cancelled.
        """
        with self._changed:
            while not (self._queue or self._ended or self._abandoned):
                self._changed.wait()
            if self._abandoned:
                raise _AbandonedError
            if not self._queue:
                return 0
            chunk = self._queue.popleft()
            size = min(len(chunk), len(buffer))
            if size < len(chunk):
                self._queue.appendleft(chunk[size:])
            self._bytes -= size
            self._changed.notify()
        buffer[:size] = chunk[:size]
        return size

    def check_end(self) -> None:
        """Wait for the end of the chunks after the end of the archive.

        Raises:
            UnsafeArchiveError: more data follows the archive's padding.
            _AbandonedError: the extraction was cancelled.
        """
        with self._changed:
            self._complete = True
            self._changed.notify()
            while not (self._queue or self._ended or self._abandoned):
                self._changed.wait()
            if self._abandoned:
                raise _AbandonedError
            if self._queue:
                raise UnsafeArchiveError(
                    f"the container sent more than {PADDING_BYTES} bytes after the end of its "
                    "archive, so nothing was written; check its tar program"
                )


def _join(thread: threading.Thread) -> None:
    """Wait for a thread; if an exception interrupts the wait, wait once more before raising it."""
    try:
        thread.join()
    except BaseException:
        thread.join()
        raise
