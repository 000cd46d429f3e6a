"""The policy for the toy task, trained on demonstrations that are right half of the time. Imports
torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hypertrainer_grpo.policy import Policy, TinyPolicy
from hypertrainer_grpo.sampling import sequence_logprobs
from hypertrainer_grpo.toy import VOCABULARY, demonstrations

_TOOLS = ({"type": "function", "function": {"name": "bash"}},)
_PASSES = 60
_LEARNING_RATE = 1e-2
Demonstration = tuple[Sequence[Mapping[str, Any]], Sequence[int]]


class ToyPolicy(TinyPolicy):
    """A tiny policy after training on demonstrations; the same seed gives the same policy."""

    def __init__(self, *, seed: int = 0) -> None:
        """Create the policy and train it on the demonstrations, which takes a second or two."""
        super().__init__(VOCABULARY, name="toy", seed=seed)
        shown = [(messages, self.tokenizer.encode(text)) for messages, text in demonstrations()]
        warm_up(self, shown, _TOOLS)


def warm_up(
    policy: Policy, demonstrations: Sequence[Demonstration], tools: Sequence[Mapping[str, Any]]
) -> None:
    """Train a policy on demonstrated turns before reinforcement learning, so that its answers have
    the right form.

    Args:
        policy: the policy to train.
        demonstrations: conversations, each with the token ids of the next turn, without
            ``Policy.end_id``.
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
