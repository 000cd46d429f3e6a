"""Convert groups to ``ScoredDataGroup``, the form that atroposlib's trainers read, and back.

The mask of a trained position is its token id. A position that is not trained has mask -100 and inference log
probability 1.0, which no token can have.

Source: atroposlib 0.4.0, ``POST /scored_data``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hyperruntime.errors import SpecError
from hyperruntime.rollout.run_files.record import Segment
from hyperruntime.rollout.training_data.samples import Sample, ScoredGroup

IGNORED = -100
NO_LOGPROB = 1.0


def to_scored_data(group: ScoredGroup, *, max_tokens: int | None = None) -> dict[str, Any]:
    """Return a group as JSON values, one sequence for each of its samples.

    If any emitted token has no log probability, ``inference_logprobs`` is None for the whole group; an invented value
    would make the importance ratio wrong. Every token has an advantage, also untrained ones.

    Args:
        group: a group with at least one sample.
        max_tokens: context length of the trainer; written to ``generation_params``, no sequence is cut.
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
        "overrides": [_override(sample) for sample in samples],
        "group_overrides": {
            "item_id": group.item_id,
            "environment": group.environment,
            "model": group.model,
            "size": group.size,
            "scored": group.scored,
        },
        "images": None,
    }


def from_scored_data(data: Mapping[str, Any]) -> ScoredGroup:
    """Return the group of a ``to_scored_data`` value, with the messages as they were sent.

    Raises:
        SpecError: a key is missing or empty, or the numbers of sequences differ.
    """
    rows = ("tokens", "masks", "scores", "advantages", "messages", "overrides")
    missing = [key for key in (*rows, "group_overrides") if not data.get(key)]
    if missing:
        raise SpecError("group", missing[0], "a group from to_scored_data() with at least one sequence")
    if len({len(data[key]) for key in rows}) != 1:
        raise SpecError("group", [len(data[key]) for key in rows], f"the same number of sequences in {', '.join(rows)}")
    logprobs = data.get("inference_logprobs") or [None] * len(data["tokens"])
    facts = data["group_overrides"]
    return ScoredGroup(
        item_id=facts["item_id"],
        environment=facts["environment"],
        model=facts["model"],
        size=facts["size"],
        scored=facts["scored"],
        samples=tuple(_sample(data, logprobs, number) for number in range(len(data["tokens"]))),
        temperature=float((data.get("generation_params") or {}).get("temperature", 1.0)),
    )


def with_content(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with ``role`` and ``content``; a turn that only has tool calls may lack ``content``."""
    return [
        {**message, "role": message.get("role", "user"), "content": message.get("content") or ""}
        for message in messages
    ]


def _masks(segment: Segment) -> list[int]:
    return [token if mask else IGNORED for token, mask in zip(segment.ids, segment.mask, strict=True)]


def _logprobs(segment: Segment) -> list[float]:
    return [
        value if mask and value is not None else NO_LOGPROB
        for value, mask in zip(segment.logprobs, segment.mask, strict=True)
    ]


def _override(sample: Sample) -> dict[str, Any]:
    return {"trajectory": sample.trajectory, "part": sample.part, "parts": sample.parts}


def _sample(data: Mapping[str, Any], logprobs: list[list[float] | None], number: int) -> Sample:
    ids, masks = data["tokens"][number], data["masks"][number]
    known: Sequence[float | None] = logprobs[number] or [None] * len(ids)
    mask = [int(value != IGNORED) for value in masks]
    segment = Segment(
        ids=ids,
        mask=mask,
        logprobs=[value if flag else None for value, flag in zip(known, mask, strict=True)],
    )
    override = data["overrides"][number]
    return Sample(
        trajectory=override["trajectory"],
        part=override["part"],
        parts=override["parts"],
        segment=segment,
        reward=data["scores"][number],
        advantage=data["advantages"][number][0],
        messages=tuple(data["messages"][number]),
    )
