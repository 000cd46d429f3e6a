"""Read a run's trajectories for what learns from them. Imports the records and errors only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cattrs

from hyperruntime.errors import RunError
from hyperruntime.rollout.record import Trajectory

TRAJECTORIES, GROUPS, RUN = "trajectories.jsonl", "groups.jsonl", "run.json"


def read_groups(run_dir: str | Path) -> Iterator[tuple[int | None, list[Trajectory]]]:
    """Return the wanted size and the trajectories of each item, items in the order in which they came first.

    Of a trajectory that was tried again the last record counts. A last line that was cut off is not there yet.

    Raises:
        RunError: this is no run, or a line of it is damaged.
    """
    directory = Path(run_dir)
    items: dict[str, dict[str, Trajectory]] = {}
    for trajectory in _trajectories(directory / TRAJECTORIES):
        items.setdefault(trajectory.item_id, {})[trajectory.id] = trajectory
    sizes = {str(group["item_id"]): int(group["size"]) for _, group in _lines(directory / GROUPS)}
    for item, by_id in items.items():
        yield sizes.get(item), list(by_id.values())


def read_temperature(run_dir: str | Path) -> float:
    """Return the temperature that a run sampled at, 1 where it does not say."""
    try:
        facts = json.loads((Path(run_dir) / RUN).read_text())
        return float(facts.get("sampling", {}).get("temperature", 1.0))
    except FileNotFoundError:
        return 1.0
    except (ValueError, AttributeError, TypeError) as error:
        raise RunError(f"{RUN} of {run_dir} is damaged: {error}; name another run") from error


def _trajectories(path: Path) -> Iterator[Trajectory]:
    if not path.is_file():
        raise RunError(f"{path.parent} is no directory of rollouts: it has no {path.name}; name one that `run` made")
    converter = cattrs.Converter()
    for number, facts in _lines(path):
        try:
            yield converter.structure(facts, Trajectory)
        except (cattrs.errors.BaseValidationError, TypeError, ValueError) as error:
            raise RunError(f"line {number} of {path} is no trajectory: {error}; mend or remove it") from error


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, json.loads(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return
                raise RunError(f"line {number} of {path} is no JSON: {error}; mend or remove it") from error
