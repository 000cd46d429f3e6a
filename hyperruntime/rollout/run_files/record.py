"""The records of a rollout run: trajectories and groups; each becomes one JSON line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

SCORED = "scored"
UNSCORED = "unscored"
INFRASTRUCTURE = "infrastructure"


@attrs.frozen(kw_only=True)
class Segment:
    """One sequence of tokens as the server saw it; all attributes have the same length.

    Tokens with mask 1 are exactly those that the server emitted; all other tokens belong to
    prompts. A trajectory has more than one segment if a later prompt did not start with the tokens
    before it.

    Attributes:
        ids: token ids.
        mask: 1 for a token that the server emitted, else 0.
        logprobs: natural logarithm of the probability of each emitted token; None for prompt
            tokens, and if the server does not return it.
    """

    ids: Sequence[int] = attrs.field(hash=False)
    mask: Sequence[int] = attrs.field(hash=False)
    logprobs: Sequence[float | None] = attrs.field(hash=False)


@attrs.frozen(kw_only=True)
class Trajectory:
    """One conversation of an agent about an item, with its score.

    Attributes:
        id: unique in the run: ``ITEM/INDEX``.
        item_id: id of the item.
        index: index in its group, from 0.
        environment: name of the environment.
        model: name of the model.
        status: ``scored``; ``unscored`` if the environment gives no reward; ``infrastructure`` if
            the library, the engine, the environment or the model's server failed. ``reward`` is
            None unless the status is ``scored``.
        reward: reward of the verdict, or None.
        parts: components of the reward by name.
        verdict: JSON: ``phase``, ``detail`` and ``facts`` of the verdict.
        stop_reason: ``finished``, ``turn_limit``, ``token_limit``, ``context_limit``,
            ``time_limit``, ``content_filter``, ``node_limit`` (of a search), or "".
        turns: number of assistant turns.
        tool_calls: number of tool calls that ran.
        messages: the conversation in OpenAI's form, tool calls and their results included.
        tools: schemas of the model's tools.
        tool_errors: JSON: the failed tool calls: ``turn``, ``tool``, ``error``.
        usage: ``prompt_tokens``, ``completion_tokens``, summed over turns.
        timing: seconds by phase: ``acquire_s``, ``setup_s``, ``model_s``, ``tools_s``,
            ``verify_s``, ``fresh_s``, ``release_s``, ``total_s``.
        connections: JSON: the servers that the agent reached through the list of its network, or
            was refused: ``host``, ``port``, ``count``, ``sent_bytes``, ``received_bytes``,
            ``refused``.
        segments: token record; empty if the server does not return token ids.
        error: ``kind``, ``message`` and ``phase`` if the status is ``infrastructure``.
        attempts: number of attempts, failed ones and those before a resume included.
        replay: JSON, empty if no attempt was replayed: ``turns`` and ``tool_calls`` that the last
            attempt played back,
            and ``restarts``: why the conversation started again, each time.
        started_at: seconds since the epoch.
    """

    id: str
    item_id: str
    index: int
    environment: str
    model: str
    status: str
    reward: float | None = None
    parts: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    verdict: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    stop_reason: str = ""
    turns: int = 0
    tool_calls: int = 0
    messages: Sequence[Mapping[str, Any]] = attrs.field(default=(), hash=False)
    tools: Sequence[Mapping[str, Any]] = attrs.field(default=(), hash=False)
    tool_errors: Sequence[Mapping[str, Any]] = attrs.field(default=(), hash=False)
    usage: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    timing: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    connections: Sequence[Mapping[str, Any]] = attrs.field(default=(), hash=False)
    segments: Sequence[Segment] = attrs.field(default=(), hash=False)
    error: Mapping[str, str] | None = attrs.field(default=None, hash=False)
    attempts: int = 1
    replay: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    started_at: float = 0.0


@attrs.frozen(kw_only=True)
class Group:
    """All trajectories of one item.

    Attributes:
        item_id: id of the item.
        size: number of trajectories that the run wants.
        trajectories: their ids in order of their index.
        rewards: their rewards; None for a trajectory that was not scored.
        advantages: ``(reward - mean) / (standard deviation + 1e-6)`` over the scored trajectories,
            None for the others; the baseline of GRPO (arXiv:2402.03300, section 4.1).
        complete: whether every trajectory was scored.
    """

    item_id: str
    size: int
    trajectories: Sequence[str] = attrs.field(hash=False)
    rewards: Sequence[float | None] = attrs.field(hash=False)
    advantages: Sequence[float | None] = attrs.field(hash=False)
    complete: bool
