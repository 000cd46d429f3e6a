"""Convert scored trajectories to rows, and write the card that declares their types for Hugging
Face ``datasets``.

``datasets`` needs the same type for a column in all rows. So all messages get the same keys, and
columns with free content (of environments and tool schemas) are JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import yaml

from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.training_data.samples import ScoredGroup, group_advantages

CARD_NAME = "README.md"
DATA_NAME = "data/train.jsonl"
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


def rows(
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


def dataset_card(count: int, size_bytes: int) -> str:
    """Return the README.md of a dataset directory.

    Args:
        count: number of rows.
        size_bytes: size of the data file.
    """
    facts = {
        "configs": [
            {"config_name": "default", "data_files": [{"split": "train", "path": DATA_NAME}]}
        ],
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
            _one_call(call)
            for call in (calls if isinstance(calls, list) else ())
            if isinstance(call, Mapping)
        ],
    }


def _one_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments", "")
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {
            "name": function.get("name"),
            "arguments": arguments
            if isinstance(arguments, str)
            else json.dumps(arguments, ensure_ascii=False),
        },
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
