"""The journal of a trajectory: what its model said and what its tools answered, while it is not
recorded yet.

Each entry is one JSON line; ``is`` names its kind. ``agent/replay.py`` plays back each ``turn`` and
``call``. The entries after an ``attempt`` belong to it, and those before an ``anew`` are void.
``unsaid`` makes the last ``call`` with its key void: a batch system may have ended the command.
``failed`` is a tool call that lost its container, or a failed verification. The first line of a
file says to which trajectory and options it belongs. A kill leaves at most one truncated line, at
the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hyperruntime.json_values import is_integer, json_object
from hyperruntime.logs import get_logger
from hyperruntime.storage.atomic import make_directory, storage_errors
from hyperruntime.storage.run_files import open_to_append, read_run_file

log = get_logger(__name__)

TURNS = "turns"
SCHEMA = 1
ATTEMPT = "attempt"
TURN = "turn"
CALL = "call"
FAILED = "failed"
ANEW = "anew"
UNSAID = "unsaid"
_FIELDS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    ATTEMPT: {"number": int},
    TURN: {
        "key": str,
        "message": dict,
        "finish_reason": str,
        "usage": dict,
        "shared": int,
        **dict.fromkeys(("prompt_ids", "ids", "logprobs"), (list, type(None))),
    },
    CALL: {"key": str, "answer": str},
    FAILED: {"key": str},
    UNSAID: {"key": str},
    ANEW: {"attempt": int},
}

Write = Callable[[bytes], Awaitable[None]]


async def _nowhere(_: bytes) -> None:
    return


class TurnJournal:
    """The journal of one trajectory.

    Attributes:
        attempts: attempts begun so far, those before a resume included.
    """

    def __init__(self, write: Write = _nowhere, data: bytes = b"", attempts: int = 0) -> None:
        """Continue a journal.

        Args:
            write: keeps each new line.
            data: the lines so far; those from the first invalid one on are ignored.
            attempts: attempts begun so far, if ``data`` does not say.
        """
        self.attempts = attempts
        self._write = write
        self._void: list[bytes] = []  # the lines of kind ``anew``
        self._lines: list[bytes] = []
        self._last: list[int] = []  # the tokens of the last turn
        self._begun = False
        self._read(data)

    @property
    def data(self) -> bytes:
        """The lines from which this journal can be continued."""
        return b"".join((*self._void, *self._lines))

    async def begin(self) -> None:
        """Begin an attempt.

        Raises:
            StorageError: it cannot be written.
        """
        self.attempts, self._begun = self.attempts + 1, False
        if self._lines or self._void:
            await self._write(self._beginning())

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries since the conversation last started again."""
        return map(json.loads, self._lines)

    def restarts(self) -> list[dict[str, Any]]:
        """Return why the conversation started again, each time."""
        return [
            {name: value for name, value in json.loads(line).items() if name != "is"}
            for line in self._void
        ]

    async def add(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - JSON values
        """Add an entry; an entry that JSON cannot represent is logged and skipped.

        Args:
            kind: ``TURN``, ``CALL``, ``FAILED``, ``UNSAID`` or ``ANEW``.
            fields: the entry's JSON values by name.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            line = _line({"is": kind, **fields})
        except (TypeError, ValueError, RecursionError) as error:
            log.warning("turn not journaled", error=str(error))
            return
        self._take(line, {"is": kind, **fields})
        await self._write((b"" if self._begun else self._beginning()) + line)

    async def add_turn(self, key: str, turn: Mapping[str, Any]) -> None:
        """Add a turn of the model.

        Args:
            key: of the request.
            turn: ``message``, ``finish_reason``, ``usage``, ``prompt_ids``, ``ids`` and
                ``logprobs``.

        Raises:
            StorageError: it cannot be written.
        """
        await self.add(TURN, **self._turn_fields(key, turn))

    async def add_turn_of(self, attempt: int, key: str, turn: Mapping[str, Any]) -> None:
        """Add a turn of an attempt that another process makes, which sends its other entries.

        Args:
            attempt: its number.
            key: of the request.
            turn: as for :meth:`add_turn`.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            line = _line({"is": TURN, **self._turn_fields(key, turn)})
        except (TypeError, ValueError, RecursionError) as error:
            log.warning("turn not journaled", error=str(error))
            return
        await self.add_lines(_line({"is": ATTEMPT, "number": attempt}) + line)

    def _turn_fields(self, key: str, turn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a turn. Its prompt begins with the tokens of the last one, mostly,
        which are left out.
        """
        prompt = None if turn["prompt_ids"] is None else list(turn["prompt_ids"])
        size = len(self._last)
        shared = size if prompt is not None and prompt[:size] == self._last else 0
        found = {name: turn[name] and list(turn[name]) for name in ("ids", "logprobs")}
        return {
            "key": key,
            "message": dict(turn["message"]),
            "finish_reason": turn["finish_reason"],
            "usage": dict(turn["usage"]),
            **found,
            "shared": shared,
            "prompt_ids": None if prompt is None else prompt[shared:],
        }

    async def add_lines(self, data: bytes) -> None:
        """Add lines of another journal of this trajectory.

        Raises:
            StorageError: they cannot be written.
        """
        valid = self._read(data)
        await self._write(data[:valid])

    def _beginning(self) -> bytes:
        self._begun = True
        return _line({"is": ATTEMPT, "number": self.attempts})

    def _read(self, data: bytes) -> int:
        """Take the lines up to the first invalid one; return their size."""
        size = 0
        for line, entry in valid_lines(data):
            size += len(line)
            if entry["is"] == ATTEMPT:
                self.attempts = max(self.attempts, entry["number"])
            else:
                self._take(line, entry)
        return size

    def _take(self, line: bytes, entry: Mapping[str, Any]) -> None:
        if entry["is"] == ANEW:
            self._void.append(line)
            self._lines.clear()
            self._last = []
            return
        if entry["is"] == UNSAID:
            self._unsay(entry["key"])
            return
        self._lines.append(line)
        if entry["is"] == TURN and entry["prompt_ids"] is not None and entry["ids"] is not None:
            self._last = [*self._last[: entry["shared"]], *entry["prompt_ids"], *entry["ids"]]

    def _unsay(self, key: str) -> None:
        for at in range(len(self._lines) - 1, -1, -1):
            entry = json.loads(self._lines[at])
            if (entry["is"], entry["key"]) == (CALL, key):
                del self._lines[at]
                return


class JournalDirectory:
    """The journals of a run: a file for each trajectory that has begun and is not recorded."""

    def __init__(self, directory: Path, options: str) -> None:
        """List the existing journals.

        Args:
            directory: created with the first line.
            options: digest of the options that decide what agents do; journals of other options are
                removed.
        """
        self._directory = directory
        self._options = options
        self._there: set[str] = set()
        with storage_errors(directory), suppress(FileNotFoundError):
            self._there = set(os.listdir(directory))

    async def open(self, trajectory_id: str) -> TurnJournal:
        """Return the journal of a trajectory, with what is in its file.

        Raises:
            StorageError: the file cannot be read.
        """
        path = self._path(trajectory_id)
        lock = asyncio.Lock()
        header = _line(
            {
                "is": "journal",
                "schema": SCHEMA,
                "trajectory": trajectory_id,
                "options": self._options,
            }
        )
        data = await asyncio.to_thread(_read, path, header) if path.name in self._there else b""

        async def append(lines: bytes) -> None:
            async with lock:
                if path.name not in self._there:
                    make_directory(self._directory)
                    self._there.add(path.name)
                await asyncio.to_thread(_append, path, header, lines)

        async def write(lines: bytes) -> None:
            await asyncio.shield(append(lines))  # the next line waits for the end of this one

        return TurnJournal(write, data)

    async def remove(self, trajectory_id: str) -> None:
        """Remove the journal of a trajectory that is recorded."""
        path = self._path(trajectory_id)
        if path.name in self._there:
            self._there.discard(path.name)
            await asyncio.to_thread(path.unlink, missing_ok=True)

    def keep_only(self, trajectory_ids: Iterable[str]) -> None:
        """Remove the journals of all other trajectories, and the directory if it is empty."""
        kept = {self._path(each).name for each in trajectory_ids} if self._there else set()
        with storage_errors(self._directory), suppress(FileNotFoundError):
            for name in self._there - kept:
                (self._directory / name).unlink(missing_ok=True)
        self._there &= kept
        with suppress(OSError):  # it does not exist, or is not empty
            self._directory.rmdir()

    def _path(self, trajectory_id: str) -> Path:
        name = hashlib.blake2b(
            trajectory_id.encode(errors="surrogatepass"), digest_size=16
        ).hexdigest()
        return self._directory / f"{name}.jsonl"


def valid_lines(data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the lines of a journal and their entries, up to the first that is truncated or not an
    entry.
    """
    for line in data.splitlines(keepends=True):
        entry = json_object(line) if line.endswith(b"\n") else None
        if entry is None or not _is_entry(entry):
            return
        yield line, entry


def _is_entry(entry: Mapping[str, Any]) -> bool:
    fields = _FIELDS.get(str(entry.get("is")))
    return fields is not None and all(
        is_integer(entry.get(name)) if kind is int else isinstance(entry.get(name), kind)
        for name, kind in fields.items()
    )


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"  # ASCII: keeps lone surrogates


def _read(path: Path, header: bytes) -> bytes:
    """Return the valid lines after the header, and cut the rest off the file; a file of others is
    removed.
    """
    with storage_errors(path):
        try:
            data = read_run_file(path, below=path.parent)
        except FileNotFoundError:
            return b""
        if not data.startswith(header):
            log.warning("journal of other options removed", path=str(path))
            path.unlink()
            return b""
        valid = len(header) + sum(len(line) for line, _ in valid_lines(data[len(header) :]))
        if valid < len(data):
            log.warning(
                "journal cut at its first invalid line", path=str(path), lost=len(data) - valid
            )
            os.truncate(path, valid)
        return data[len(header) : valid]


def _append(path: Path, header: bytes, lines: bytes) -> None:
    """Append lines in one piece; on an error, none of them.

    They are not synced: a kill loses nothing, and a crash of the machine costs the model calls of
    the last seconds.
    """
    with storage_errors(path), open_to_append(path, buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        left = memoryview(lines if size else header + lines)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise
