"""Own the directory of a run, and record its lines, in asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyperruntime.errors import StorageError
from hyperruntime.runs.lock import RunLock
from hyperruntime.runs.run_file import INTERRUPTED, RUN, note_end, reason_of
from hyperruntime.storage.atomic import append_lines


@contextmanager
def owned(run_dir: Path) -> Iterator[None]:
    """Own a run's directory; the current task is cancelled if another process takes over the
    directory.

    An error that ends the block is stored in ``run.json``, where ``status`` and ``report`` find it.

    Raises:
        RunLockedError: another live process owns the directory.
        LeaseLostError: another process took over the directory.
    """
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    assert task is not None, "inside a coroutine"
    cancel = task.cancel

    def on_lost() -> None:
        loop.call_soon_threadsafe(cancel)

    with RunLock(run_dir) as lock:
        lock.on_lost(on_lost)
        note_end(run_dir / RUN, "")
        try:
            yield
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            if is_cancelled:
                lock.check()
            note_end(run_dir / RUN, INTERRUPTED if is_cancelled else reason_of(error))
            raise


class Journal:
    """A file to which lines are appended durably; concurrent lines share one fsync."""

    def __init__(self, path: Path) -> None:
        """Set the path; the first line creates the file."""
        self._path = path
        self._waiting: list[bytes] = []
        self._lock = asyncio.Lock()
        self._error: StorageError | None = None

    async def add(self, line: bytes) -> None:
        """Append a line; it is on disk when this returns, and is written even if this is cancelled.

        Raises:
            StorageError: this line, or an earlier one, cannot be written.
        """
        await asyncio.shield(self._add(line))

    async def _add(self, line: bytes) -> None:
        self._waiting.append(line)
        async with self._lock:
            if self._error is not None:
                raise self._error  # another task failed to write this line
            if not self._waiting:
                return  # another task wrote this line
            lines, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._write, b"".join(lines))
            except StorageError as error:
                self._error = error
                raise

    async def close(self) -> None:
        """Wait until all pending lines are written; never raises an error."""
        async with self._lock:
            pass

    def _write(self, data: bytes) -> None:
        append_lines(self._path, data)
