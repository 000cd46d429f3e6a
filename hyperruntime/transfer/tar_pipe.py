"""The host side of a copy: write an archive for a command, or extract the archive that a command writes.

Each side works in its own thread while the calling thread runs the command. When it fails, it calls ``on_error`` at
once, so that the caller does not wait for a command that may never end.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from hyperruntime.errors import UnsafeArchiveError
from hyperruntime.exec.input_source import shut_down
from hyperruntime.transfer.extract import PADDING_BYTES, ExtractLimits, ExtractReport, extract_tree

_SOCKET_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 16
_QUEUE_BYTES = 4 << 20


class LateError(Exception):
    """The deadline passed while a chunk waited for the extraction on the host."""


class NotTakenError(Exception):
    """The extraction failed and takes no more data; the reason is in :attr:`Receiver.error`."""


class _AbandonedError(Exception):
    """The extraction was cancelled."""


class Feeder:
    """Writes an archive into a socket while a command reads the other end.

    Unlike a pipe, a socket can be shut down while a forked child of this program holds a copy of it.

    Attributes:
        reader: the command's end.
        error: the error that stopped the archive, or None.
    """

    def __init__(self, write: Callable[[BinaryIO], object], on_error: Callable[[], None]) -> None:
        """Create the socket; nothing runs yet.

        Args:
            write: writes the archive into a file.
            on_error: called in the thread when ``write`` fails.
        """
        self.error: Exception | None = None
        self._write, self._on_error = write, on_error
        self._near, self._far = socket.socketpair()
        self._far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self.reader = cast(BinaryIO, self._near.makefile("rb", buffering=0))
        self._thread = threading.Thread(target=self._feed, name="hyperruntime-put", daemon=True)

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    def stop(self) -> None:
        """Stop writing, wait for the thread and close the socket."""
        shut_down(self._near)
        if self._thread.ident is not None:
            _join(self._thread)
        for end in (self.reader, self._near, self._far):
            end.close()

    def _feed(self) -> None:
        pipe = self._far.makefile("wb", buffering=_BUFFER_BYTES)
        try:
            self._write(cast(BinaryIO, pipe))
            pipe.flush()
        except BrokenPipeError:
            pass
        except Exception as error:  # noqa: BLE001 - handed to the calling thread
            self.error = error
            self._on_error()
        finally:
            shut_down(self._far)
            with suppress(OSError):
                pipe.close()  # writes what is left in its buffer, so it comes after the call of `on_error`


class Receiver:
    """Extracts an archive while a command writes it chunk by chunk.

    Attributes:
        error: the error that stopped the extraction, or None.
        report: the report of a complete extraction, or None.
    """

    def __init__(self, target: str | os.PathLike[str], limits: ExtractLimits, on_error: Callable[[], None]) -> None:
        """Store the settings; nothing runs yet.

        Args:
            target: the path to create.
            limits: limits of the archive.
            on_error: called in the thread when the extraction fails.
        """
        self.error: Exception | None = None
        self.report: ExtractReport | None = None
        self._target, self._limits, self._on_error = target, limits, on_error
        self._chunks = _Chunks()
        self._thread = threading.Thread(target=self._extract, name="hyperruntime-get", daemon=True)

    def start(self, timeout_s: float | None) -> None:
        """Start the thread that extracts; ``timeout_s`` seconds from now, :meth:`take` stops waiting (None: never)."""
        self._chunks.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._thread.start()

    def take(self, stream: str, chunk: bytes) -> None:
        """Queue a chunk of the command's standard output; other streams are ignored.

        Args:
            stream: name of the stream.
            chunk: its next bytes.

        Raises:
            LateError: the deadline passed, and the queue is still full.
            NotTakenError: the extraction failed.
        """
        if stream == "stdout":
            self._chunks.put(chunk)
            if self.error is not None:
                raise NotTakenError

    def finish(self, *, keep: bool) -> None:
        """Wait until all chunks are extracted; install the tree if ``keep`` is true."""
        self._chunks.end(keep=keep)
        _join(self._thread)

    def stop(self) -> None:
        """Cancel the extraction unless it has finished, and wait for the thread."""
        self._chunks.abandon()
        if self._thread.ident is not None:
            _join(self._thread)

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
            self._on_error()
        finally:
            self._chunks.abandon()


class _Chunks:
    """A bounded queue of bytes between two threads, read like an unbuffered file; a pipe would copy them twice.

    Attributes:
        deadline: monotonic time in seconds at which :meth:`put` stops waiting; None for no deadline.
    """

    def __init__(self) -> None:
        self.deadline: float | None = None
        self._queue: deque[memoryview] = deque()
        self._bytes = 0
        self._ended = self._keep = self._abandoned = self._complete = False
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

    def end(self, *, keep: bool) -> None:
        """Mark the end of the chunks; ``keep`` says whether the archive is to be installed."""
        with self._changed:
            self._ended, self._keep = True, keep
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
            _AbandonedError: the archive is not to be installed.
        """
        with self._changed:
            self._complete = True
            self._changed.notify()
            while not (self._queue or self._ended or self._abandoned):
                self._changed.wait()
            if self._queue and not self._abandoned:
                raise UnsafeArchiveError(
                    f"the container sent more than {PADDING_BYTES} bytes after the end of its archive, so nothing was "
                    "written; check its tar program"
                )
            if not self._keep or self._abandoned:
                raise _AbandonedError


def _join(thread: threading.Thread) -> None:
    """Wait for a thread; if an exception interrupts the wait, wait once more before raising it."""
    try:
        thread.join()
    except BaseException:
        thread.join()
        raise
