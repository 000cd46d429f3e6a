"""Read the lines of a run, also while another process, perhaps on another machine, appends to
them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from hyperruntime.errors import ArchiveError
from hyperruntime.logs import get_logger
from hyperruntime.runs.lock import owner_state
from hyperruntime.storage.atomic import json_line, storage_errors, sync_directory
from hyperruntime.storage.run_files import (
    open_regular,
    open_run_file,
    read_line,
    read_run_lines,
)

log = get_logger(__name__)
K = TypeVar("K")


class GrowingFile:
    """A file that is read line by line as it grows; nothing is kept open between two reads.

    Attributes:
        path: the file; it may be missing until its first line. It is read as a file of its
            directory, which is a run.
        position: bytes that were read: the end of the last whole line.
        inode: number of the file that was read; 0 before there is one.
        lines: number of whole lines that were read.
    """

    def __init__(self, path: Path) -> None:
        """Begin before the first line."""
        self.path = path
        self.position = self.inode = self.lines = 0

    def was_replaced(self) -> bool:
        """Return whether the file was replaced or truncated, so that the lines read before are
        stale.
        """
        try:
            found = os.lstat(self.path)
        except OSError:
            return False  # it may be hidden for a moment, as on NFS
        return self._is_other(found)

    def _is_other(self, found: os.stat_result) -> bool:
        return self.inode != 0 and (found.st_ino != self.inode or found.st_size < self.position)

    def new_lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield the offset, the length and the text of each new whole line; a line without its end
        is read later.

        A replaced file yields none, see :meth:`was_replaced`.

        Raises:
            OSError: the file exists but cannot be read, is not a regular file, or has a line that
                is too long.
        """
        try:
            if self.inode and os.lstat(self.path).st_size <= self.position:
                return
            file = os.fdopen(open_run_file(self.path, below=self.path.parent), "rb")
        except FileNotFoundError:
            return
        with file:
            found = os.fstat(file.fileno())
            if self._is_other(found):  # since the last look at the path
                return
            self.inode = found.st_ino
            file.seek(self.position)
            while (line := read_line(file, self.lines + 1)).endswith(b"\n"):
                begin, self.position, self.lines = (
                    self.position,
                    self.position + len(line),
                    self.lines + 1,
                )
                yield begin, len(line), line


class Follower(Generic[K]):
    """The entries of a run that another process makes, as its journal grows.

    It reads each line once, and writes nothing.

    Attributes:
        journal: the file that is read.
        is_owned: whether a live process owned the run before the last read.
    """

    def __init__(self, journal: Path) -> None:
        """Read nothing yet."""
        self.journal = GrowingFile(journal)
        self.is_owned = False
        # not returned yet: a read may fail after some lines
        self._changed: list[tuple[int, K]] = []

    def take(self, line: bytes, begin: int) -> K | None:
        """Take a line, which begins at an offset; return the id of the entry that it changed, or
        None.
        """
        raise NotImplementedError

    def read_new(self) -> list[tuple[int, K]]:
        """Read new lines; return the end of each line that changed an entry, and the entry's id.

        Raises:
            ArchiveError: the journal cannot be read.
        """
        # first: the run may end meanwhile
        self.is_owned = owner_state(self.journal.path.parent) == "alive"
        try:
            for begin, length, line in self.journal.new_lines():
                if (name := self.take(line, begin)) is not None:
                    self._changed.append((begin + length, name))
        except OSError as error:
            raise ArchiveError(
                f"{str(self.journal.path)!r} cannot be read: {error.strerror}"
            ) from error
        changed, self._changed = self._changed, []
        return changed


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the JSON value of each line; truncated lines are logged and skipped.

    Raises:
        StorageError: the file exists but cannot be read.
    """
    with storage_errors(path), suppress(FileNotFoundError):
        for number, line in enumerate(read_run_lines(path, below=path.parent), 1):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                log.warning("truncated line skipped", path=str(path), line=number)
                continue
            yield number, value


def rewrite_lines(path: Path, is_kept: Callable[[Any], bool]) -> None:
    """Write a file again with some of its JSON lines; the replacement is atomic.

    Raises:
        StorageError: the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path):
        with open(partial, "wb", opener=open_regular) as file:
            file.writelines(json_line(value) for _, value in json_lines(path) if is_kept(value))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_directory(path.parent)
