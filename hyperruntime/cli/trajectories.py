"""A rollout run in a terminal: one line, a table of its trajectories, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyperruntime.cli.tables import Column, printable
from hyperruntime.rollout.run.store import RunStore, stored_options
from hyperruntime.rollout.run.summary import RolloutSummary, Tally
from hyperruntime.rollout.run_files.record import SCORED, Trajectory
from hyperruntime.rollout.run_files.run_dir import read_groups, read_run
from hyperruntime.runs.lock import owner_state
from hyperruntime.runs.run_file import end_reason
from hyperruntime.units import format_duration

_DETAIL_CHARS = 90


def trajectory_columns(made: Sequence[Trajectory]) -> list[Column]:
    """Return a table with a row for each trajectory."""
    parts = dict.fromkeys(name for one in made for name in one.parts)
    seconds = [float(one.timing.get("total_s", 0.0)) for one in made]
    tokens = [
        int(one.usage.get("prompt_tokens", 0)) + int(one.usage.get("completion_tokens", 0))
        for one in made
    ]
    columns = [
        Column(name="trajectory", texts=[printable(one.id) for one in made]),
        _numbers("reward", [one.reward for one in made], "{:.4f}"),
        *(
            _numbers(printable(name), [one.parts.get(name) for one in made], "{:.4f}")
            for name in parts
        ),
        _numbers("turns", [one.turns for one in made], "{}"),
        _numbers("calls", [one.tool_calls for one in made], "{}"),
        _numbers("tokens", tokens, "{}"),
        Column(name="stop", texts=[one.stop_reason for one in made]),
        Column(name="duration", texts=list(map(format_duration, seconds)), values=seconds),
    ]
    if any(one.status != SCORED for one in made):
        kinds = [
            "" if one.status == SCORED else str((one.error or {}).get("kind", "")) or one.status
            for one in made
        ]
        columns.append(Column(name="failure", texts=[_failure(one) for one in made], words=kinds))
    return columns


def rollout_line(run_dir: Path, made: Sequence[Trajectory], *, is_running: bool) -> str:
    """Return one line about a rollout run.

    Args:
        run_dir: its directory.
        made: its trajectories.
        is_running: whether it goes on.
    """
    done = _summary(run_dir, made)
    mean = "no reward yet" if done.mean_reward is None else f"mean reward {done.mean_reward:.4f}"
    failed = (
        f"; failed: {', '.join(f'{n} {kind}' for kind, n in sorted(done.errors.items()))}"
        if done.errors
        else ""
    )
    counts = f"{done.resumed} trajectories, {done.scored} scored, {mean}, {done.groups} full groups"
    ended = "" if is_running else end_reason(read_run(run_dir))
    state = "running" if is_running else "not running"
    failed += f"; ended because: {ended}" if ended else ""
    return (
        f"{run_dir}: a rollout run of {stored_options(run_dir).environment}, {state}, "
        f"{counts}{failed}"
    )


def rollout_facts(run_dir: str) -> dict[str, Any]:
    """Return what the files of a rollout run say about it, as JSON values."""
    path = Path(run_dir)
    options = stored_options(path)
    state = "running" if owner_state(path) == "alive" else "not running"
    done = _summary(path, list(RunStore(path).recorded()))
    names = ("scored", "infrastructure", "mean_reward", "groups", "errors", "last_errors")
    counts = {"trajectories": done.resumed, **{name: getattr(done, name) for name in names}}
    ended = None if state == "running" else end_reason(read_run(path)) or None
    facts = {
        "run_dir": run_dir,
        "rollout": True,
        "state": state,
        "ended": ended,
        "environment": options.environment,
    }
    return {**facts, **counts}


def _summary(run_dir: Path, made: Sequence[Trajectory]) -> RolloutSummary:
    tally = Tally()
    tally.before = list(made)
    return tally.summary(
        str(run_dir), len(made), sum(group.complete for group in read_groups(run_dir))
    )


def _numbers(name: str, values: Sequence[float | None], form: str) -> Column:
    return Column(
        name=name, texts=["" if one is None else form.format(one) for one in values], values=values
    )


def _failure(one: Trajectory) -> str:
    if one.status == SCORED:
        return ""
    error = one.error or {}
    text = printable(
        " ".join(f"{error.get('kind', '') or one.status}: {error.get('message', '')}".split())
    )
    return text if len(text) <= _DETAIL_CHARS else text[: _DETAIL_CHARS - 3] + "..."
