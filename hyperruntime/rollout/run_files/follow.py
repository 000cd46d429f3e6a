"""Follow the trajectories of a run that another process makes."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from hyperruntime.errors import ArchiveError, SpecError
from hyperruntime.json_values import json_object
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, trajectory_of
from hyperruntime.storage.growing_file import GrowingFile
from hyperruntime.storage.run_files import open_run_file
from hyperruntime.storage.run_lock import owner_state


class TrajectoryFollower:
    """The trajectories of a run, as its file grows; it reads each line once and writes nothing.

    Attributes:
        journal: the file that is read.
        records: the last record of each trajectory, in the order of their first lines, without its
            large fields.
        damaged: number of lines that could not be read.
        is_owned: whether a live process owned the run before the last read.
    """

    def __init__(self, run_dir: Path) -> None:
        """Read nothing yet."""
        self._run_dir = run_dir
        self.journal = GrowingFile(run_dir / TRAJECTORIES)
        self.records: dict[str, Trajectory] = {}
        self.damaged = 0
        self.is_owned = False
        self._places: dict[str, tuple[int, int]] = {}
        # not returned yet: a read may fail after some lines
        self._changed: list[tuple[int, str]] = []

    def read_new(self) -> list[tuple[int, str]]:
        """Read new lines; return the end of each line that changed a trajectory, and the
        trajectory's id.

        Raises:
            ArchiveError: the file cannot be read.
        """
        self.is_owned = owner_state(self._run_dir) == "alive"
        try:
            for begin, length, line in self.journal.new_lines():
                one = _parsed(line)
                if one is None:
                    self.damaged += 1
                    continue
                slim = attrs.evolve(one, messages=(), tools=(), segments=(), tool_errors=())
                self.records[one.id] = slim
                self._places[one.id] = (begin, length)
                self._changed.append((begin + length, one.id))
        except OSError as error:
            raise ArchiveError(
                f"{str(self.journal.path)!r} cannot be read: {error.strerror}"
            ) from error
        changed, self._changed = self._changed, []
        return changed

    def whole(self, name: str) -> Trajectory | None:
        """Return a trajectory with all its fields; None if its line cannot be read any more.

        Raises:
            KeyError: there is no such trajectory.
        """
        begin, length = self._places[name]
        try:
            with os.fdopen(open_run_file(self.journal.path, below=self._run_dir), "rb") as file:
                file.seek(begin)
                return _parsed(file.read(length))
        except OSError:
            return None


def _parsed(line: bytes) -> Trajectory | None:
    try:
        return trajectory_of(json_object(line))
    except SpecError:
        return None
