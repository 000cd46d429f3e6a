"""Write a run's scored trajectories as training data.

Infrastructure failures have no reward: they are counted in the summary and not written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import RunError
from hyperruntime.option_fields import OneOf
from hyperruntime.rollout.run_files.record import SCORED, UNSCORED, Trajectory
from hyperruntime.rollout.run_files.run_dir import (
    RESULTS,
    TRAJECTORIES,
    read_run,
    read_trajectories,
)
from hyperruntime.rollout.training_data.rows import CARD_NAME, DATA_NAME, dataset_card, rows
from hyperruntime.rollout.training_data.samples import ALL, LAST, ScoredGroup, scored_group
from hyperruntime.rollout.training_data.scored_data import to_scored_data
from hyperruntime.runs.run_file import RUN

FORMATS = ("atropos", "huggingface", "jsonl")
KEEP = "keep"
DROP = "drop"


@attrs.frozen(kw_only=True)
class ExportOptions:
    """Export options.

    Attributes:
        to: one of ``FORMATS``.
        incomplete: ``keep`` or ``drop`` groups with a trajectory that was not scored; None drops
            them for ``atropos``, whose trainers expect groups of one size, and keeps them
            otherwise.
        equal: ``keep`` or ``drop`` groups whose rewards are all equal; None drops them for
            ``atropos`` only.
        segments: ``all`` or ``last``, see ``scored_group``; for ``atropos`` only.
        max_tokens: drop groups with a longer sequence, for ``atropos`` only; None means no limit.
    """

    to: str = attrs.field(default="jsonl", validator=OneOf(FORMATS))
    incomplete: str | None = attrs.field(default=None, validator=OneOf((KEEP, DROP)))
    equal: str | None = attrs.field(default=None, validator=OneOf((KEEP, DROP)))
    segments: str = attrs.field(default=ALL, validator=OneOf((ALL, LAST)))
    max_tokens: int | None = None

    def drops(self, choice: str | None) -> bool:
        """Return whether ``incomplete`` or ``equal`` drops a group, with None as the default of the
        format.
        """
        return choice == DROP or (choice is None and self.to == "atropos")


@attrs.define(kw_only=True)
class Summary:
    """Counts of the groups and trajectories of an export.

    Attributes:
        path: the file or directory that was written.
        groups: groups written.
        trajectories: trajectories written.
        sequences: token sequences written.
        not_scored: trajectories without a reward; they are never written.
        incomplete: groups dropped because a trajectory was not scored.
        equal: groups dropped because all rewards are equal.
        too_long: groups dropped because a sequence exceeds ``max_tokens``.
        no_tokens: groups dropped because a trajectory has no token record.
    """

    path: str = ""
    groups: int = 0
    trajectories: int = 0
    sequences: int = 0
    not_scored: int = 0
    incomplete: int = 0
    equal: int = 0
    too_long: int = 0
    no_tokens: int = 0


def export_run(run_dir: str | Path, output: str | Path, options: ExportOptions) -> Summary:
    """Write the training data of a run to a new file, or to a new directory for ``huggingface``;
    return the counts.

    The output is complete or does not exist.

    Args:
        run_dir: directory of the run.
        output: path of the new file or directory.
        options: export options.

    Raises:
        RunError: the directory has no run, the run is damaged, the output exists, or a
            ``huggingface`` export is empty.
    """
    target = Path(output)
    if target.exists():
        raise RunError(f"{target} exists already; remove it, or use another --output")
    summary = Summary(path=str(target))
    kept = _kept(run_dir, options, summary)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        _write(partial, kept, options)
        os.rename(partial, target)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
    return summary


Kept = Iterable[tuple[ScoredGroup, list[Trajectory]]]


def export_groups(run_dir: str | Path, options: ExportOptions) -> Iterator[ScoredGroup]:
    """Yield the groups of a run that the options keep; raises RunError if the run is missing,
    damaged or unscored.
    """
    for group, _ in _kept(run_dir, options, Summary()):
        yield group


def _kept(run_dir: str | Path, options: ExportOptions, summary: Summary) -> Kept:
    """Yield the groups to write, and count written and dropped groups in ``summary``."""
    directory = Path(run_dir)
    items = _items(directory)
    stored = read_run(directory).get("options", {}) if (directory / RUN).is_file() else {}
    size = stored.get("group_size")
    temperature = float(stored.get("temperature", 1.0))
    for trajectories in items:
        group = scored_group(
            trajectories, size=size, segments=options.segments, temperature=temperature
        )
        scored = [
            each for each in trajectories if each.status == SCORED and each.reward is not None
        ]
        summary.not_scored += len(trajectories) - len(scored)
        reason = _reason_to_drop(group, scored, options)
        if reason:
            setattr(summary, reason, getattr(summary, reason) + 1)
        elif scored:
            summary.groups += 1
            summary.trajectories += len(scored)
            summary.sequences += len(group.samples)
            yield group, sorted(scored, key=lambda each: each.index)


def _items(directory: Path) -> list[list[Trajectory]]:
    """Return the trajectories of each item of a run, in the order of their first lines.

    Raises:
        RunError: the directory has no run, its environment gives no rewards, or a record is
            damaged.
    """
    no_rewards = (
        f"{directory} has no rewards to train on; name a run whose environment scores its "
        "trajectories"
    )
    if not (directory / TRAJECTORIES).is_file():
        if (directory / RESULTS).is_file():
            raise RunError(no_rewards)
        raise RunError(f"{directory} has no {TRAJECTORIES}; name the directory of a rollout run")
    items: dict[str, list[Trajectory]] = {}
    for trajectory in read_trajectories(directory):
        if trajectory.status == UNSCORED:
            raise RunError(no_rewards)
        items.setdefault(trajectory.item_id, []).append(trajectory)
    return list(items.values())


def _reason_to_drop(group: ScoredGroup, scored: list[Trajectory], options: ExportOptions) -> str:
    if not group.complete and options.drops(options.incomplete):
        return "incomplete"
    if len({each.reward for each in scored}) <= 1 and options.drops(options.equal):
        return "equal"
    if options.to != "atropos":
        return ""
    if len(group.rewards) < len(scored):
        return "no_tokens"
    return (
        "too_long" if options.max_tokens is not None and group.longest > options.max_tokens else ""
    )


def _write(path: Path, kept: Kept, options: ExportOptions) -> None:
    if options.to == "atropos":
        _write_lines(
            path, (to_scored_data(group, max_tokens=options.max_tokens) for group, _ in kept)
        )
    elif options.to == "jsonl":
        _write_lines(
            path, (row for group, scored in kept for row in rows(group, scored, as_text=False))
        )
    else:
        data = path / DATA_NAME
        data.parent.mkdir(parents=True)
        count = _write_lines(
            data, (row for group, scored in kept for row in rows(group, scored, as_text=True))
        )
        if not count:
            why = "this run has nothing to export, and `datasets` cannot read an empty directory"
            raise RunError(f"{why}; use --to jsonl")
        (path / CARD_NAME).write_text(dataset_card(count, data.stat().st_size))


def _write_lines(path: Path, values: Iterable[dict[str, Any]]) -> int:
    """Write one JSON line for each value; return the number of lines."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    return count
