"""Read and write a run's directory: ``run.json``, ``trajectories.jsonl``, ``groups.jsonl``; a
batch: ``results.jsonl``.

Groups are derived from ``trajectories.jsonl``. A truncated line is skipped, and its trajectory runs
again. If a trajectory has several lines, the last one counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from hyperruntime.errors import ArchiveError, RunError, SpecError
from hyperruntime.rollout.run_files.record import Group, Segment, Trajectory
from hyperruntime.runs.journal import json_lines
from hyperruntime.runs.run_file import RUN, read_run_value, write_run_value
from hyperruntime.settings.reader import read

T = TypeVar("T", Trajectory, Group, Segment)

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
    value = read_run_value(path, "name the directory of a rollout run")
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
    write_run_value(run_dir / RUN, {"schema": SCHEMA, **value})


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
    for number, value in json_lines(path):
        try:
            yield make(value)
        except SpecError as error:
            raise RunError(
                f"line {number} of {path} is damaged: {error}; fix or remove the line"
            ) from error
