"""Read a file of lines to which another process, perhaps on another machine, appends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hyperruntime.storage.run_files import open_run_file, read_line


class GrowingFile:
    """A file that is read line by line as it grows; nothing is kept open between two reads.

    Attributes:
        path: the file; it may be missing until its first line. It is read as a file of its
            directory, which is a run.
        position: bytes that were read: the end of the last whole line.
        inode: number of the file that was read; 0 before there is one.
    """

    def __init__(self, path: Path) -> None:
        """Begin before the first line."""
        self.path = path
        self.position = self.inode = self._lines = 0

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
            while (line := read_line(file, self._lines + 1)).endswith(b"\n"):
                begin, self.position, self._lines = (
                    self.position,
                    self.position + len(line),
                    self._lines + 1,
                )
                yield begin, len(line), line
