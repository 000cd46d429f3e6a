"""The files of a run while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from hyperruntime.errors import RunError
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.options_json import check_same, options_to_json
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Group, Trajectory
from hyperruntime.rollout.run_files.run_dir import (
    GROUPS,
    RUN,
    TRAJECTORIES,
    Journal,
    iter_trajectories,
    read_run,
    to_line,
    write_run,
)
from hyperruntime.storage.atomic import write_atomic


class RunStore:
    """The files of a run."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._trajectories = Journal(run_dir / TRAJECTORIES)
        self._groups = Journal(run_dir / GROUPS)

    def begin(self, options: RolloutOptions) -> RolloutOptions:
        """Return what is run, with its seed, once it is sure that nothing else was run here before."""
        if (self.run_dir / RUN).is_file():
            return check_same(read_run(self.run_dir), options, self.run_dir)
        if (self.run_dir / TRAJECTORIES).exists():
            raise RunError(f"{str(self.run_dir)!r} has trajectories and no {RUN}; give another --run-id")
        return options

    def keep_options(self, options: RolloutOptions) -> None:
        """Write what is run, unless it is written already."""
        if not (self.run_dir / RUN).is_file():
            write_run(self.run_dir, {"created": time.time(), "options": options_to_json(options)})

    def recorded(self) -> Iterator[Trajectory]:
        """Return what is recorded, the last line of each trajectory."""
        last = {trajectory.id: slim(trajectory) for trajectory in iter_trajectories(self.run_dir)}
        yield from last.values()

    def write_groups(self, groups: Iterable[Group]) -> None:
        """Write the file of groups anew: it follows from the trajectories."""
        write_atomic(self.run_dir / GROUPS, b"".join(to_line(group) for group in groups))

    async def add(self, line: bytes) -> None:
        """Record a trajectory's line; it is on disk when this returns, and also if this is cancelled."""
        await asyncio.shield(self._trajectories.add(line))

    async def add_group(self, group: Group) -> None:
        """Record a group."""
        await asyncio.shield(self._groups.add(to_line(group)))

    async def close(self) -> None:
        """Close the files when all that was added is written."""
        await self._trajectories.close()
        await self._groups.close()


def slim(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory without what takes room."""
    return attrs.evolve(trajectory, messages=(), tools=(), segments=(), tool_errors=(), verdict={})


def recordable(trajectory: Trajectory) -> tuple[Trajectory, bytes]:
    """Return a trajectory with its line; one that JSON cannot hold becomes a failure that says so."""
    try:
        return trajectory, to_line(trajectory)
    except (ValueError, TypeError, RecursionError) as error:
        told = {"kind": type(error).__name__, "message": f"it cannot be written as JSON: {error}", "phase": "record"}
        failed = attrs.evolve(slim(trajectory), status=INFRASTRUCTURE, reward=None, parts={}, error=told)
        return failed, to_line(failed)
