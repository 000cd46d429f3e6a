"""Read a run's trajectories item by item, for exports and trainers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hyperruntime.errors import RunError
from hyperruntime.rollout.run_files import run_dir as rundir
from hyperruntime.rollout.run_files.record import UNSCORED, Trajectory


def read_items(run_dir: str | Path) -> Iterator[tuple[int | None, list[Trajectory]]]:
    """Yield the group size (None if unknown) and the trajectories of each item, in the order of their first lines.

    Raises:
        RunError: the directory has no run, its environment gives no rewards, or a record is damaged.
    """
    directory = Path(run_dir)
    no_rewards = RunError(
        f"{directory} has no rewards to train on; name a run whose environment scores its trajectories"
    )
    if not (directory / rundir.TRAJECTORIES).is_file():
        if (directory / rundir.RESULTS).is_file():
            raise no_rewards
        raise RunError(f"{directory} has no {rundir.TRAJECTORIES}; name the directory of a rollout run")
    size = _option(directory, "group_size")
    wanted = size if isinstance(size, int) else None
    items: dict[str, list[Trajectory]] = {}
    for trajectory in rundir.read_trajectories(directory):
        if trajectory.status == UNSCORED:
            raise no_rewards
        items.setdefault(trajectory.item_id, []).append(trajectory)
    yield from ((wanted, trajectories) for trajectories in items.values())


def read_temperature(run_dir: str | Path) -> float:
    """Return the sampling temperature of a run, or 1 if it is not recorded."""
    temperature = _option(Path(run_dir), "temperature")
    return float(temperature) if isinstance(temperature, (int, float)) else 1.0


def _option(directory: Path, name: str) -> object:
    if not (directory / rundir.RUN).is_file():
        return None
    options = rundir.read_run(directory).get("options")
    return options.get(name) if isinstance(options, dict) else None
