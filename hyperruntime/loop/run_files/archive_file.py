"""``archive.jsonl`` for the tools around HyperAgents: each line lists all generations so far.

hyperruntime itself reads only the journal. A line per generation would take O(N^2) bytes. Above 256
generations, a line is written each time the archive has grown by 1/256, and when a run stops.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.storage.atomic import append_line, json_line, storage_errors, write_atomic
from hyperruntime.storage.run_files import open_run_file

_EVERY = 256


class ArchiveFile:
    """Writes ``archive.jsonl``; the bytes per generation do not grow with the number of
    generations.
    """

    def __init__(self, path: Path) -> None:
        """Append to ``path``; call :meth:`repair` first if the file exists."""
        self._path = path
        self._listed = 0

    def add(self, ids: Sequence[GenId]) -> bool:
        """Write a line if one is due; return whether one was. ``ids`` are all generations, the
        newest last.

        Raises:
            StorageError: a line cannot be written.
        """
        due = len(ids) > self._listed and (
            len(ids) <= _EVERY or (len(ids) - self._listed) * _EVERY >= len(ids)
        )
        if due:
            self.flush(ids)
        return due

    def flush(self, ids: Sequence[GenId]) -> None:
        """Append a line that lists all ``ids``, unless the last line does.

        Raises:
            StorageError: a line cannot be written.
        """
        if len(ids) > self._listed:
            append_line(self._path, _line(ids))
            self._listed = len(ids)

    def repair(self, ids: Sequence[GenId]) -> None:
        """Remove a truncated last line and append a line if ids are missing; rewrite a file that
        lists other ids.

        Raises:
            StorageError: the file cannot be written.
        """
        with storage_errors(self._path):
            listed = _last_list(self._path)
        if listed is None or listed != list(ids[: len(listed)]):
            write_atomic(self._path, json_line(_line(ids)) if ids else b"")
            self._listed = len(ids)
        else:
            self._listed = len(listed)
        self.flush(ids)


def _line(ids: Sequence[GenId]) -> dict[str, Any]:
    return {"current_genid": ids[-1], "archive": list(ids)}


def _last_list(path: Path) -> list[GenId] | None:
    """Remove a truncated last line; return the ids of the last complete line, or None if that line
    is not valid.
    """
    try:
        file = os.fdopen(open_run_file(path, below=path.parent, flags=os.O_RDWR), "rb+")
    except FileNotFoundError:
        return []
    with file:
        if os.fstat(file.fileno()).st_size == 0:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            end = data.rfind(b"\n") + 1
            text = data[data.rfind(b"\n", 0, max(0, end - 1)) + 1 : end]
        file.truncate(end)
    if not text:
        return []
    try:
        listed = json.loads(text)["archive"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return listed if isinstance(listed, list) else None
