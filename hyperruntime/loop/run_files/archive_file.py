"""``archive.jsonl`` for the tools around HyperAgents: each line lists all generations so far.

hyperruntime itself reads only the journal. A line per generation would take O(N^2) bytes. Above 256 generations, a line
is written each time the archive has grown by 1/256, and when a run stops.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.storage.atomic import append_line, json_line, storage_errors, write_atomic

_EVERY = 256
_TAIL_BYTES = 64 * 1024


class ArchiveFile:
    """Writes ``archive.jsonl``; the bytes per generation do not grow with the number of generations."""

    def __init__(self, path: Path) -> None:
        """Append to ``path``; call :meth:`repair` first if the file exists."""
        self._path = path
        self._listed = 0

    def add(self, ids: Sequence[GenId]) -> None:
        """Write a line if one is due; ``ids`` are all generations, the newest last.

        Raises:
            StorageError: a line cannot be written.
        """
        if len(ids) > self._listed and (len(ids) <= _EVERY or (len(ids) - self._listed) * _EVERY >= len(ids)):
            self.flush(ids)

    def flush(self, ids: Sequence[GenId]) -> None:
        """Append a line that lists all ``ids``, unless the last line does.

        Raises:
            StorageError: a line cannot be written.
        """
        if len(ids) > self._listed:
            append_line(self._path, _line(ids))
            self._listed = len(ids)

    def repair(self, ids: Sequence[GenId]) -> None:
        """Remove a truncated last line and append a line if ids are missing; rewrite a file that lists other ids.

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
    """Remove a truncated last line; return the ids of the last complete line, or None if that line is not valid."""
    try:
        file = open(path, "rb+")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return []
    with file:
        size = file.seek(0, os.SEEK_END)
        end = _after_line_feed(file, size)
        if end < size:
            file.truncate(end)
        start = _after_line_feed(file, end - 1)
        file.seek(start)
        text = file.read(end - start)
    if not text:
        return []
    try:
        listed = json.loads(text)["archive"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return listed if isinstance(listed, list) else None


def _after_line_feed(file: BinaryIO, below: int) -> int:
    """Return the offset after the last line feed below an offset; 0 if there is no line feed."""
    while below > 0:
        begin = max(0, below - _TAIL_BYTES)
        file.seek(begin)
        at = file.read(below - begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        below = begin
    return 0
