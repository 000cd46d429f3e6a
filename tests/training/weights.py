"""Measures of a policy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hypertrainer_grpo.grpo import Batch
from hypertrainer_grpo.policy import Policy
from hypertrainer_grpo.sampling import sequence_logprobs


def importance_ratios(network: nn.Module, batch: Batch) -> Tensor:
    """Return each emitted token's probability now divided by its probability at sampling time; 1
    elsewhere.
    """
    with torch.no_grad():
        now = sequence_logprobs(network, batch.sequences, batch.temperature)
    return torch.exp((now - batch.old) * batch.mask)


def parameters_of(policy: Policy) -> list[Tensor]:
    """Return copies of all weights, for comparison."""
    return [parameter.detach().clone() for parameter in policy.network.parameters()]
