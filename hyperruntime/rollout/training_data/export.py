"""Write a run's scored trajectories as training data: rows for any trainer, a directory for Hugging
Face ``datasets`` with a card that declares types, or groups for atroposlib.

Infrastructure failures have no reward: they are counted in the summary and not written.
``datasets`` needs the same type for a column in all rows. So all messages get the same keys, and
columns with free content (of environments and tool schemas) are JSON text.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import yaml

from hyperruntime.errors import RunError
from hyperruntime.option_fields import AtLeast, OneOf, option
from hyperruntime.rollout.agent.tool_calls import shaped_call
from hyperruntime.rollout.run_files.record import SCORED, UNSCORED, Trajectory
from hyperruntime.rollout.run_files.run_dir import (
    RESULTS,
    TRAJECTORIES,
    read_run,
    read_trajectories,
)
from hyperruntime.rollout.training_data.samples import (
    ALL,
    LAST,
    ScoredGroup,
    group_advantages,
    scored_group,
)
from hyperruntime.rollout.training_data.scored_data import to_scored_data
from hyperruntime.runs.run_file import RUN

FORMATS = ("atropos", "huggingface", "jsonl")
KEEP = "keep"
DROP = "drop"
_CARD = "README.md"
_DATA = "data/train.jsonl"
_FREE = ("parts", "verdict", "tools", "tool_errors")  # JSON of any shape
_PLAIN = {
    "id": "string",
    "item_id": "string",
    "index": "int64",
    "environment": "string",
    "model": "string",
    "reward": "float64",
    "advantage": "float64",
    "group_size": "int64",
    "group_scored": "int64",
    "stop_reason": "string",
    "turns": "int64",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "total_s": "float64",
}


@attrs.frozen(kw_only=True)
class ExportOptions:
    """Export options; the text of each is in its field.

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

    to: str = option("jsonl", "Output format.", check=OneOf(FORMATS))
    incomplete: str | None = option(
        None,
        "Keep or drop partly scored groups [default: keep; atropos: drop].",
        check=OneOf((KEEP, DROP)),
    )
    equal: str | None = option(
        None,
        "Keep or drop groups of equal rewards [default: keep; atropos: drop].",
        check=OneOf((KEEP, DROP)),
    )
    segments: str = option(
        ALL,
        "atropos: write all segments of a trajectory, or the last.",
        check=OneOf((ALL, LAST)),
    )
    max_tokens: int | None = option(
        None, "atropos: drop groups with a longer sequence.", check=AtLeast(1)
    )

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
            path, (row for group, scored in kept for row in _rows(group, scored, as_text=False))
        )
    else:
        data = path / _DATA
        data.parent.mkdir(parents=True)
        count = _write_lines(
            data, (row for group, scored in kept for row in _rows(group, scored, as_text=True))
        )
        if not count:
            why = "this run has nothing to export, and `datasets` cannot read an empty directory"
            raise RunError(f"{why}; use --to jsonl")
        (path / _CARD).write_text(_dataset_card(count, data.stat().st_size))


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


def _rows(
    group: ScoredGroup, scored: Sequence[Trajectory], *, as_text: bool
) -> Iterator[dict[str, Any]]:
    """Yield a row for each trajectory of a group.

    Args:
        group: the group.
        scored: its scored trajectories.
        as_text: whether to write free JSON as text, so that every column has one type.
    """
    advantages = group_advantages([each.reward for each in scored])
    for trajectory, advantage in zip(scored, advantages, strict=True):
        row = {name: getattr(trajectory, name) for name in _PLAIN if hasattr(trajectory, name)}
        row |= {
            name: trajectory.usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens")
        }
        row["total_s"] = trajectory.timing.get("total_s", 0.0)
        row |= {"advantage": advantage, "group_size": group.size, "group_scored": group.scored}
        free = {name: getattr(trajectory, name) for name in _FREE}
        row |= (
            {name: json.dumps(value, ensure_ascii=False) for name, value in free.items()}
            if as_text
            else free
        )
        row["messages"] = (
            [_one_shape(message) for message in trajectory.messages]
            if as_text
            else trajectory.messages
        )
        row["segments"] = [attrs.asdict(segment, recurse=False) for segment in trajectory.segments]
        yield row


def _dataset_card(count: int, size_bytes: int) -> str:
    """Return the README.md of a dataset directory.

    Args:
        count: number of rows.
        size_bytes: size of the data file.
    """
    facts = {
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": _DATA}]}],
        "dataset_info": {
            "config_name": "default",
            "features": _features(),
            "splits": [{"name": "train", "num_examples": count, "num_bytes": size_bytes}],
        },
        "tags": ["agent", "rollouts", "reinforcement-learning"],
    }
    return f"""---
{yaml.safe_dump(facts, sort_keys=False)}---

# Scored rollouts

{count} trajectories of agents in containers, written by hyperruntime. Each trajectory is one row:

- `messages`: the conversation, with tool calls and their results.
- `reward`, and `advantage`: its distance from the mean of its group (rows of one `item_id`) in standard deviations.
- `segments`: `ids`, `mask` (1 for emitted tokens, 0 for prompts) and `logprobs` (null for prompts), one entry for each
  sequence of tokens; empty if the model's server did not return token ids.
- `parts`, `verdict`, `tools`, `tool_errors`: JSON text.

Trajectories with an infrastructure failure have no reward, so they are not included.
"""


def _one_shape(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return {
        "role": str(message.get("role", "user")),
        "content": _text(message.get("content")),
        "name": message.get("name"),
        "tool_call_id": message.get("tool_call_id"),
        "tool_calls": [
            shaped_call(call)
            for call in (calls if isinstance(calls, list) else ())
            if isinstance(call, Mapping)
        ],
    }


def _text(content: Any) -> str:  # noqa: ANN401 - OpenAI's content: text, parts, or null
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "".join(text for text in texts if isinstance(text, str))


def _features() -> list[dict[str, Any]]:
    """Return the column types in the form of the card's metadata."""
    call = [
        {"name": "id", "dtype": "string"},
        {"name": "type", "dtype": "string"},
        {"name": "function", "struct": _columns({"name": "string", "arguments": "string"})},
    ]
    message = [
        *_columns(dict.fromkeys(("role", "content", "name", "tool_call_id"), "string")),
        {"name": "tool_calls", "list": call},
    ]
    segment = [
        {"name": "ids", "list": "int64"},
        {"name": "mask", "list": "int8"},
        {"name": "logprobs", "list": "float64"},
    ]
    return [
        *_columns(_PLAIN),
        *_columns(dict.fromkeys(_FREE, "string")),
        {"name": "messages", "list": message},
        {"name": "segments", "list": segment},
    ]


def _columns(types: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "dtype": dtype} for name, dtype in types.items()]
