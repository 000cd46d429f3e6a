"""Follow the trajectories of a run that another process makes."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.json_values import json_object
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, trajectory_of
from hyperruntime.runs.journal import Follower
from hyperruntime.storage.run_files import open_run_file


class TrajectoryFollower(Follower[str]):
    """The trajectories of a run, as its file grows.

    Attributes:
        records: the last record of each trajectory, in the order of their first lines, without its
            large fields.
        damaged: number of lines that could not be read.
    """

    def __init__(self, run_dir: Path) -> None:
        """Read nothing yet."""
        super().__init__(run_dir / TRAJECTORIES)
        self._run_dir = run_dir
        self.records: dict[str, Trajectory] = {}
        self.damaged = 0
        self._places: dict[str, tuple[int, int]] = {}

    def take(self, line: bytes, begin: int) -> str | None:
        """Take a line; return the trajectory that it changed."""
        one = _parsed(line)
        if one is None:
            self.damaged += 1
            return None
        slim = attrs.evolve(one, messages=(), tools=(), segments=(), tool_errors=())
        self.records[one.id] = slim
        self._places[one.id] = (begin, len(line))
        return one.id

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
