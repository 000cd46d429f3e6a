"""The tool ``list_files``."""

from __future__ import annotations

import itertools
import math
import os
from typing import TypedDict

from hyperruntime.pool.tools.slot_scripts import run_inside, show
from hyperruntime.pool.tools.tool import MAX_ENTRIES, Param, Tool, ToolRequest, done
from hyperruntime.pool_values.results import ExecutionResult

_KINDS = {
    "f": "file",
    "d": "directory",
    "l": "link",
    "p": "pipe",
    "s": "socket",
    "c": "device",
    "b": "device",
}
_STAT_KINDS = {"directory": "d", "symbolic link": "l", "fifo": "p", "socket": "s"}
_SCANNED = 200_000
_RECORD_BYTES = 64 * 1024
_DIGITS = 30


class Entry(TypedDict):
    """One entry of a directory, as JSON values.

    Attributes:
        path: relative to the listed directory.
        type: file, directory, link, pipe, socket or device.
        size: in bytes.
        mtime: seconds since 1970.
    """

    path: str
    type: str
    size: int
    mtime: float


class Entries:
    """Collects the output of ``list.sh``; ignores entries after the first 200,000."""

    def __init__(self) -> None:
        self.found: list[Entry] = []
        self.overflow = False
        self._rest = b""

    def write(self, chunk: bytes) -> None:
        """Add the next bytes of the output; a record is ``kind|size|mtime|path`` and NUL."""
        *records, rest = (self._rest + chunk).split(b"\0")
        self._rest = rest[:_RECORD_BYTES]  # a longer record is invalid
        for record in records:
            if len(self.found) >= _SCANNED:
                self.overflow = True
            elif entry := parse_record(record):
                self.found.append(entry)


def parse_record(record: bytes) -> Entry | None:
    """Return the entry of a record; None if the record is invalid."""
    fields = record.split(b"|", 3)
    if len(fields) != 4:
        return None
    kind, size, mtime, path = fields
    word = kind.decode(errors="replace")
    try:
        type_ = _KINDS.get(_STAT_KINDS.get(word, word), "device" if "special" in word else "file")
        entry = Entry(
            path=show(os.fsdecode(path)),
            type=type_,
            size=int(size[:_DIGITS]),
            mtime=float(mtime[:_DIGITS]),
        )
    except ValueError:
        return None
    return entry if math.isfinite(entry["mtime"]) else None


async def list_entries(call: ToolRequest, *, hidden: bool) -> tuple[list[Entry], bool]:
    """Return the entries of a directory, sorted by path, and whether some are missing.

    Args:
        call: the call, with its arguments ``path``, ``recursive`` and ``max_entries``.
        hidden: whether to list names that begin with a dot.

    Raises:
        ToolProblemError: the directory cannot be listed.
    """
    args = call.args
    most = min(call.args["max_entries"] or call.policy.max_entries, call.policy.max_entries)
    entries = Entries()
    variables = {"depth": "" if args["recursive"] else "1", "hidden": "1" if hidden else ""}
    await run_inside(call, "list", args["path"], variables=variables, on_stdout=entries.write)
    found = sorted(entries.found, key=lambda entry: entry["path"])
    return found[:most], entries.overflow or len(found) > most


async def run_list(call: ToolRequest) -> ExecutionResult:
    """Return the entries of a directory."""
    found, truncated = await list_entries(call, hidden=call.args["hidden"])
    lines = [_line(entry) for entry in found] or ["(nothing)"]
    lengths = itertools.accumulate(len(line) + 1 for line in lines)
    shown = max(1, sum(length <= call.policy.output_chars for length in lengths))
    lines, found, truncated = lines[:shown], found[:shown], truncated or shown < len(lines)
    if truncated:
        lines.append(
            f"[only the first {len(found)} are shown; list a subdirectory, or raise 'max_entries']"
        )
    return done("\n".join(lines), path=show(call.args["path"]), entries=found, truncated=truncated)


def _line(entry: Entry) -> str:
    name = entry["path"].replace("\\", "\\\\").replace("\n", "\\n")
    if entry["type"] == "file":
        return f"{name}\t{entry['size']}"
    return f"{name}/" if entry["type"] == "directory" else f"{name}\t{entry['type']}"


LIST_FILES = Tool(
    name="list_files",
    description=(
        "List a directory of the workspace: one entry per line, directories with a slash at the "
        "end, files with their size in bytes."
    ),
    params=(
        Param("path", str, "directory, absolute or relative to the workspace", default="."),
        Param("recursive", bool, "also list subdirectories", default=False),
        Param("hidden", bool, "also list names that begin with a dot", default=False),
        MAX_ENTRIES,
    ),
    run=run_list,
)
