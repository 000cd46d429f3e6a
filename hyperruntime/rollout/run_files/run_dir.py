"""Read and write a run's directory: ``run.json``, ``trajectories.jsonl``, ``groups.jsonl``; a
batch: ``results.jsonl``.

Groups are derived from ``trajectories.jsonl``. A truncated line is skipped, and its trajectory runs
again. If a trajectory has several lines, the last one counts.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs

from hyperruntime.errors import ArchiveError, RunError, SpecError, StorageError
from hyperruntime.json_values import parse_json
from hyperruntime.logs import get_logger
from hyperruntime.rollout.run_files.record import Group, Segment, Trajectory
from hyperruntime.settings.reader import read
from hyperruntime.storage.atomic import append_lines, json_document, storage_errors, write_atomic
from hyperruntime.storage.own_mark import with_own_mark
from hyperruntime.storage.run_end import INTERRUPTED, note_end, reason_of
from hyperruntime.storage.run_files import MOST_JSON_BYTES, read_run_file, read_run_lines
from hyperruntime.storage.run_lock import RunLock

log = get_logger(__name__)
T = TypeVar("T", Trajectory, Group, Segment)

RUN = "run.json"
TRAJECTORIES = "trajectories.jsonl"
GROUPS = "groups.jsonl"
RESULTS = "results.jsonl"
SCHEMA = 1


def read_run(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of ``run.json``.

    Raises:
        ArchiveError: the file cannot be read, or its schema is unknown.
    """
    path = Path(run_dir) / RUN
    try:
        value = parse_json(read_run_file(path, below=path.parent, most_bytes=MOST_JSON_BYTES))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ArchiveError(
            f"{path} cannot be read ({why}); name the directory of a rollout run"
        ) from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise ArchiveError(
            f"{path} is not from a rollout run that this version can read; name another directory"
        )
    return value


def write_run(run_dir: Path, value: Mapping[str, Any]) -> None:
    """Write ``run.json``, marked as this user's.

    Raises:
        StorageError: the file cannot be written.
    """
    write_atomic(run_dir / RUN, json_document(with_own_mark({"schema": SCHEMA, **value}, run_dir)))


def iter_trajectories(run_dir: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """Return the trajectories of a run line by line; a trajectory with several lines is yielded
    several times.

    Raises:
        RunError: a line is valid JSON but not a trajectory.
        StorageError: the file exists but cannot be read.
    """
    return _records(Path(run_dir) / TRAJECTORIES, trajectory_of)


def read_trajectories(run_dir: str | os.PathLike[str]) -> list[Trajectory]:
    """Return the last record of each trajectory, in the order of their first lines.

    Raises:
        RunError, StorageError: as for :func:`iter_trajectories`.
    """
    return list({trajectory.id: trajectory for trajectory in iter_trajectories(run_dir)}.values())


def read_groups(run_dir: str | os.PathLike[str]) -> list[Group]:
    """Return the recorded groups of a run; a group is recorded when all its trajectories are."""
    groups = _records(
        Path(run_dir) / GROUPS, lambda value: read(Group, value, "the line", strict=False)
    )
    return list({group.item_id: group for group in groups}.values())


def trajectory_of(value: object) -> Trajectory:
    """Return a trajectory from its JSON value; unknown fields are ignored.

    Raises:
        SpecError: the value is not of a trajectory.
    """
    return read(Trajectory, value, "the line", strict=False)


def to_line(value: Trajectory | Group) -> bytes:
    """Return a record as one line of UTF-8; lone surrogates become ``?``.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, default=_plain)
    return text.encode(errors="replace") + b"\n"


def _plain(value: object) -> object:
    """Convert a value that the JSON encoder does not know; tokens are not copied."""
    if isinstance(value, Trajectory | Group | Segment):
        return attrs.asdict(value, recurse=False)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) else str(value)


def _records(path: Path, make: Callable[[Mapping[str, Any]], T]) -> Iterator[T]:
    """Yield the records of a file.

    Raises:
        RunError: a line is valid JSON but not a valid record.
    """
    for number, value in iter_lines(path):
        try:
            yield make(value)
        except SpecError as error:
            raise RunError(
                f"line {number} of {path} is damaged: {error}; fix or remove the line"
            ) from error


def iter_lines(path: Path) -> Iterator[tuple[int, Any]]:
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
