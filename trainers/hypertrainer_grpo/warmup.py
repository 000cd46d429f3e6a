"""Train a policy on demonstrations before reinforcement learning, so that its answers have the right form.

Imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hypertrainer_grpo.policy import Policy
from hypertrainer_grpo.sampling import sequence_logprobs

_PASSES, _LEARNING_RATE = 60, 1e-2
Demonstration = tuple[Sequence[Mapping[str, Any]], Sequence[int]]


def warm_up(policy: Policy, demonstrations: Sequence[Demonstration], tools: Sequence[Mapping[str, Any]]) -> None:
    """Train on demonstrated turns.

    Args:
        policy: the policy to train.
        demonstrations: conversations, each with the token ids of the next turn, without ``Policy.end_id``.
        tools: tool schemas of the prompts.
    """
    prompts = [policy.render(messages, tools) for messages, _ in demonstrations]
    turns = [[*turn, policy.end_id] for _, turn in demonstrations]
    sequences = [[*prompt, *turn] for prompt, turn in zip(prompts, turns, strict=True)]
    longest = max(map(len, sequences))
    mask = torch.zeros(len(sequences), longest, dtype=torch.float64)
    for row, (prompt, sequence) in enumerate(zip(prompts, sequences, strict=True)):
        mask[row, len(prompt) : len(sequence)] = 1
    optimizer = torch.optim.Adam(policy.network.parameters(), lr=_LEARNING_RATE)
    for _ in range(_PASSES):
        loss = -(sequence_logprobs(policy.network, sequences, 1.0) * mask).sum() / mask.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
