"""Write the files of a run while it runs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import RunError
from hyperruntime.option_fields import changed, from_json, host_requests, option_fields, to_json
from hyperruntime.rollout.loading import absolute_code
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Group, Trajectory
from hyperruntime.rollout.run_files.run_dir import (
    GROUPS,
    TRAJECTORIES,
    iter_trajectories,
    read_run,
    to_line,
    write_run,
)
from hyperruntime.rollout.run_files.turn_journal import TURNS, JournalDirectory
from hyperruntime.runs.options import check_unchanged
from hyperruntime.runs.own_mark import check_requests, has_own_mark
from hyperruntime.runs.recording import Journal
from hyperruntime.runs.run_file import RUN
from hyperruntime.storage.atomic import write_atomic

# Fields that may change when a run resumes, in whole or in part; the name of the model may not.
_CHANGEABLE = {field.path[0] for field in option_fields(RolloutOptions) if field.option.changes}


class RunStore:
    """The files of a run.

    Attributes:
        run_dir: the directory.
        trajectories: file of the trajectories.
        groups: file of the groups.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.trajectories = Journal(run_dir / TRAJECTORIES)
        self.groups = Journal(run_dir / GROUPS)

    def begin(self, options: RolloutOptions) -> RolloutOptions:
        """Return the options to run with: the new ones, or those of the run that is resumed.

        Raises:
            RunError: the directory has another run, or trajectories without ``run.json``.
        """
        options = _with_absolute_code(options)  # a resume may have another working directory
        if (self.run_dir / RUN).is_file():
            return _resumed_options(self.run_dir, options)
        if (self.run_dir / TRAJECTORIES).exists():
            raise RunError(
                f"{str(self.run_dir)!r} has trajectories and no {RUN}; use another --run-id"
            )
        return options

    def keep_options(self, options: RolloutOptions) -> None:
        """Write ``run.json``, unless this user wrote it already; the options are this user's or
        accepted by it.
        """
        stored = (
            read_run(self.run_dir) if (self.run_dir / RUN).is_file() else {"created": time.time()}
        )
        if not has_own_mark(stored, self.run_dir):
            write_run(self.run_dir, {**stored, "options": to_json(options)})

    def journals(self, options: RolloutOptions) -> JournalDirectory:
        """Return the journals of trajectories that are not recorded yet."""
        return JournalDirectory(self.run_dir / TURNS, _digest(options))

    def recorded(self) -> Iterator[Trajectory]:
        """Return the last record of each trajectory, without its large fields."""
        return iter(
            {
                trajectory.id: slim(trajectory) for trajectory in iter_trajectories(self.run_dir)
            }.values()
        )

    def write_groups(self, groups: Iterable[Group]) -> None:
        """Replace ``groups.jsonl``; groups are always derived from the trajectories."""
        write_atomic(self.run_dir / GROUPS, b"".join(to_line(group) for group in groups))

    async def close(self) -> None:
        """Close the files after all pending lines are written."""
        await self.trajectories.close()
        await self.groups.close()


def stored_options(run_dir: Path) -> RolloutOptions:
    """Return the options of a run.

    Raises:
        ArchiveError: they cannot be read, or are not valid.
    """
    return from_json(RolloutOptions, read_run(run_dir).get("options", {}), strict=True)


def resumable_options(
    run_dir: Path, changes: Mapping[tuple[str, ...], Any] | None = None, *, trust: bool
) -> RolloutOptions:
    """Return the options of a run that is resumed, with the given changes.

    Args:
        run_dir: the run directory.
        changes: new values by the path of their fields.
        trust: whether the user accepts what a run that was made elsewhere asks of the host.

    Raises:
        ArchiveError: as for :func:`stored_options`.
        ReceivedRunError: another user made the run, and it asks for something that was neither
            given nor accepted.
    """
    given = changes or {}
    options = changed(stored_options(run_dir), given)
    check_requests(run_dir / RUN, read_run(run_dir), host_requests(options, given), trust=trust)
    return options


def _resumed_options(run_dir: Path, options: RolloutOptions) -> RolloutOptions:
    """Return the stored options of a run, with the new values of those that may change.

    Raises:
        OptionChangedError: an option differs that may not change.
    """
    stored = stored_options(run_dir)
    # as they would be stored: JSON has no tuples
    text = json.dumps(to_json(options), default=str)
    asked = from_json(RolloutOptions, json.loads(text), strict=True)
    # the seed of a new run is drawn, if the user chose none
    check_unchanged(_with_absolute_code(stored), attrs.evolve(asked, seed=stored.seed), run_dir)
    return attrs.evolve(stored, **{name: getattr(options, name) for name in _CHANGEABLE})


def _with_absolute_code(options: RolloutOptions) -> RolloutOptions:
    """Return options whose files of code are named by absolute paths."""
    agent = None if options.agent is None else absolute_code(options.agent)
    return attrs.evolve(options, environment=absolute_code(options.environment), agent=agent)


def _digest(options: RolloutOptions) -> str:
    """Return a digest of the options that may not change when a run resumes."""
    fixed = {name: value for name, value in to_json(options).items() if name not in _CHANGEABLE}
    text = json.dumps([fixed, options.model and options.model.name], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def slim(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory without its large fields."""
    return attrs.evolve(trajectory, messages=(), tools=(), segments=(), tool_errors=(), verdict={})


def recordable(trajectory: Trajectory) -> tuple[Trajectory, bytes]:
    """Return a trajectory and its line; if it cannot be written as JSON, return it as an
    infrastructure failure.
    """
    try:
        return trajectory, to_line(trajectory)
    except (ValueError, TypeError, RecursionError) as error:
        told = {
            "kind": type(error).__name__,
            "message": f"it cannot be written as JSON: {error}",
            "phase": "record",
        }
        failed = attrs.evolve(
            slim(trajectory), status=INFRASTRUCTURE, reward=None, parts={}, error=told
        )
        return failed, to_line(failed)
