"""What a rollout leaves behind: trajectories and groups, as values that are one JSON line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

SCORED, INFRASTRUCTURE, CANCELLED = "scored", "infrastructure", "cancelled"


@attrs.frozen(kw_only=True)
class Segment:
    """One sequence of tokens as the server saw it; all three of the same length.

    The spans whose mask is 1 are exactly what the server emitted, turn by turn; everything else is a prompt. A
    trajectory has more than one where a later prompt did not begin with the tokens before it.

    Attributes:
        ids: token ids.
        mask: 1 for a token that the server emitted, else 0.
        logprobs: of emitted tokens, natural logarithm; None elsewhere, and where the server gave none.
    """

    ids: Sequence[int]
    mask: Sequence[int]
    logprobs: Sequence[float | None]


@attrs.frozen(kw_only=True)
class Trajectory:
    """One attempt of an agent at an item.

    Attributes:
        id: unique in the run: ``ITEM/INDEX``.
        item_id: the item.
        index: its number in the group, from 0.
        environment: name of the environment.
        model: name of the model.
        status: ``scored``; ``infrastructure`` where something of ours, of the engine or of the model's server failed,
            and ``reward`` is None; ``cancelled``.
        reward: of the verdict, or None.
        parts: what the reward is made of, by name.
        verdict: JSON: ``phase``, ``detail`` and ``facts`` of the verdict.
        stop_reason: ``finished``, ``turn_limit``, ``token_limit``, ``context_limit``, ``time_limit``, or "".
        turns: assistant turns.
        messages: the conversation in OpenAI's form, tool calls and their results included.
        tools: schemas that the model was given.
        tool_errors: JSON: calls that could not be carried out: ``turn``, ``tool``, ``error``.
        usage: ``prompt_tokens``, ``completion_tokens``, summed over turns.
        timing: seconds by phase: ``acquire_s``, ``setup_s``, ``model_s``, ``tools_s``, ``verify_s``, ``release_s``,
            ``total_s``.
        segments: token records; empty where the server gives none.
        error: ``kind`` and ``message`` where the status is not ``scored``.
        attempts: how often it was begun, failed ones included.
        started_at: seconds since the epoch.
    """

    id: str
    item_id: str
    index: int
    environment: str
    model: str
    status: str
    reward: float | None = None
    parts: Mapping[str, float] = attrs.field(factory=dict)
    verdict: Mapping[str, Any] = attrs.field(factory=dict)
    stop_reason: str = ""
    turns: int = 0
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    tool_errors: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[str, int] = attrs.field(factory=dict)
    timing: Mapping[str, float] = attrs.field(factory=dict)
    segments: Sequence[Segment] = ()
    error: Mapping[str, str] | None = None
    attempts: int = 1
    started_at: float = 0.0


@attrs.frozen(kw_only=True)
class Group:
    """All trajectories of one item.

    Attributes:
        item_id: the item.
        size: how many were wanted.
        trajectories: their ids in order of their index.
        rewards: theirs; None where one was not scored.
        advantages: ``(reward - mean) / (standard deviation + 1e-6)`` over the scored ones, None for the others; the
            baseline of GRPO (arXiv:2402.03300, section 4.1).
        complete: whether every trajectory was scored.
    """

    item_id: str
    size: int
    trajectories: Sequence[str]
    rewards: Sequence[float | None]
    advantages: Sequence[float | None]
    complete: bool
