"""The host's ends of a copy: one writes an archive for a command, one extracts the archive that a command writes.

Each works in a thread of its own while the calling thread runs the command, and calls ``on_error`` at once when it
fails, so that nobody waits for a command that may never end.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from hyperruntime.errors import UnsafeArchiveError
from hyperruntime.transfer.extract import PADDING_BYTES, ExtractLimits, ExtractReport, extract_tree

_SOCKET_BYTES = 1 << 20
_QUEUE_BYTES = 4 << 20


class LateError(Exception):
    """The deadline passed while a chunk waited to be written on the host."""


class NotTakenError(Exception):
    """The extraction has failed, and nothing more is wanted; :attr:`Receiver.error` says why."""


class _AbandonedError(Exception):
    """What was extracted is not wanted."""


class Feeder:
    """Writes an archive into a socket while a command reads the other end.

    A socket, for it can be shut down though a forked child of this program holds a copy of it.

    Attributes:
        reader: what the command reads.
        error: why the archive is not whole, or None.
    """

    def __init__(self, write: Callable[[BinaryIO], object], on_error: Callable[[], None]) -> None:
        """Take the function that writes the archive; nothing runs yet."""
        self.error: Exception | None = None
        self._write, self._on_error = write, on_error
        self._near, self._far = socket.socketpair()
        self._far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self.reader = cast(BinaryIO, self._near.makefile("rb", buffering=0))
        self._thread = threading.Thread(target=self._feed, name="hyperruntime-put", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more, and wait until the thread has ended."""
        _shut_down(self._near)
        if self._thread.ident is not None:
            _join(self._thread)
        for end in (self.reader, self._near, self._far):
            end.close()

    def _feed(self) -> None:
        try:
            with self._far.makefile("wb", buffering=0) as pipe:
                self._write(cast(BinaryIO, pipe))
        except BrokenPipeError:
            pass
        except Exception as error:  # noqa: BLE001 - handed to the calling thread
            self.error = error
            self._on_error()
        finally:
            _shut_down(self._far)


class Receiver:
    """Extracts an archive while a command hands it over chunk by chunk.

    Attributes:
        error: why nothing was extracted, or None.
        report: what was extracted and is at the target, or None.
    """

    def __init__(self, target: str | os.PathLike[str], limits: ExtractLimits, on_error: Callable[[], None]) -> None:
        """Name what to make; nothing runs yet."""
        self.error: Exception | None = None
        self.report: ExtractReport | None = None
        self._target, self._limits, self._on_error = target, limits, on_error
        self._chunks = _Chunks()
        self._thread = threading.Thread(target=self._extract, name="hyperruntime-get", daemon=True)

    def start(self, timeout_s: float | None) -> None:
        """Begin to extract; :meth:`take` waits no longer than ``timeout_s`` from now."""
        self._chunks.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._thread.start()

    def take(self, stream: str, chunk: bytes) -> None:
        """Hand over a chunk of the command's output.

        Raises:
            LateError: the deadline passed, and the host has not written what came before.
            NotTakenError: the extraction has failed.
        """
        if stream == "stdout":
            self._chunks.put(chunk)
            if self.error is not None:
                raise NotTakenError

    def finish(self, *, keep: bool) -> None:
        """Wait until all that was taken is extracted, and put it in place if it shall be kept."""
        self._chunks.end(keep=keep)
        _join(self._thread)

    def stop(self) -> None:
        """Extract no more, leave nothing unless it was finished, and wait until the thread has ended."""
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
        deadline: until when :meth:`put` waits, by the monotonic clock; None is for ever.
    """

    def __init__(self) -> None:
        self.deadline: float | None = None
        self._queue: deque[memoryview] = deque()
        self._bytes = 0
        self._ended = self._keep = self._abandoned = self._complete = False
        self._changed = threading.Condition()

    def put(self, chunk: bytes) -> None:
        """Add a chunk; waits while too much is waiting to be read."""
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
        """Nothing more comes; what came is to be kept or not."""
        with self._changed:
            self._ended, self._keep = True, keep
            self._changed.notify()

    def abandon(self) -> None:
        """Nothing more is wanted."""
        with self._changed:
            self._abandoned = True
            self._queue.clear()
            self._changed.notify()

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer with what is there, at least a byte; 0 at the end."""
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
        """Wait for the end of all chunks, when the archive has ended.

        Raises:
            UnsafeArchiveError: it goes on behind the archive's padding.
            _AbandonedError: the archive is not to be kept.
        """
        with self._changed:
            self._complete = True
            self._changed.notify()
            while not (self._queue or self._ended or self._abandoned):
                self._changed.wait()
            if self._queue and not self._abandoned:
                raise UnsafeArchiveError(
                    f"the container sent more than {PADDING_BYTES} bytes after the end of its archive, so nothing was "
                    "written; check what its tar is"
                )
            if not self._keep or self._abandoned:
                raise _AbandonedError


def _join(thread: threading.Thread) -> None:
    """Wait for a thread; the first interruption waits with it, so that nothing stays half-done."""
    try:
        thread.join()
    except BaseException:
        thread.join()
        raise


def _shut_down(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end was first
