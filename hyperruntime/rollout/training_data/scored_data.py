"""Convert groups to ``ScoredDataGroup``, the form that atroposlib's trainers read.

The mask of a trained position is its token id. A position that is not trained has mask -100 and
inference log probability 1.0, which no token can have.

Source: atroposlib 0.4.0, ``POST /scored_data``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hyperruntime.rollout.run_files.record import Segment
from hyperruntime.rollout.training_data.samples import ScoredGroup

IGNORED = -100
NO_LOGPROB = 1.0


def to_scored_data(group: ScoredGroup, *, max_tokens: int | None = None) -> dict[str, Any]:
    """Return a group as JSON values, one sequence for each of its samples.

    If any emitted token has no log probability, ``inference_logprobs`` is None for the whole group;
    an invented value would make the importance ratio wrong. Every token has an advantage, also
    untrained ones.

    Args:
        group: a group with at least one sample.
        max_tokens: context length of the trainer; written to ``generation_params``, no sequence is
            cut.
    """
    samples = group.samples
    params: dict[str, Any] = {"temperature": group.temperature}
    if max_tokens is not None:
        params["max_tokens"] = max_tokens
    known = all(sample.has_logprobs for sample in samples)
    return {
        "tokens": [list(sample.segment.ids) for sample in samples],
        "masks": [_masks(sample.segment) for sample in samples],
        "scores": [sample.reward for sample in samples],
        "advantages": [[sample.advantage] * len(sample.segment.ids) for sample in samples],
        "ref_logprobs": None,
        "messages": [with_content(sample.messages) for sample in samples],
        "generation_params": params,
        "inference_logprobs": [_logprobs(sample.segment) for sample in samples] if known else None,
        "overrides": [
            {"trajectory": s.trajectory, "part": s.part, "parts": s.parts} for s in samples
        ],
        "group_overrides": {
            "item_id": group.item_id,
            "environment": group.environment,
            "model": group.model,
            "size": group.size,
            "scored": group.scored,
        },
        "images": None,
    }


def with_content(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with ``role`` and ``content``; a turn that only has tool calls may lack
    ``content``.
    """
    return [
        {**message, "role": message.get("role", "user"), "content": message.get("content") or ""}
        for message in messages
    ]


def _masks(segment: Segment) -> list[int]:
    return [
        token if mask else IGNORED for token, mask in zip(segment.ids, segment.mask, strict=True)
    ]


def _logprobs(segment: Segment) -> list[float]:
    return [
        value if mask and value is not None else NO_LOGPROB
        for value, mask in zip(segment.logprobs, segment.mask, strict=True)
    ]
