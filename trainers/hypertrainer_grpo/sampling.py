"""Sample tokens from a network, and compute the log probabilities of given tokens. Imports
torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor, nn

_GREEDY = 1e-6


@attrs.frozen
class Drawn:
    """One sampled turn.

    Attributes:
        ids: emitted token ids, the end token included.
        logprobs: log probability of each token in the distribution from which it was drawn.
        ended: whether the last token is the end token.
    """

    ids: list[int]
    logprobs: list[float]
    ended: bool


def draw(
    network: nn.Module,
    prompt: Sequence[int],
    *,
    end_id: int,
    most: int,
    temperature: float,
    generator: torch.Generator,
) -> Drawn:
    """Sample a turn.

    Args:
        network: returns logits, see ``Policy.network``.
        prompt: token ids of the prompt.
        end_id: the token that ends the turn.
        most: maximum tokens to emit.
        temperature: softmax temperature; 0 always takes the most likely token.
        generator: source of random numbers.
    """
    device = _device(network)
    ids = list(prompt)
    emitted: list[int] = []
    logprobs: list[float] = []
    with torch.no_grad():
        while len(emitted) < most:
            logits = network(torch.tensor([ids], device=device))[0, -1].cpu().double()
            distribution = torch.log_softmax(
                logits / (temperature if temperature > _GREEDY else 1.0), dim=-1
            )
            if temperature > _GREEDY:
                token = int(torch.multinomial(distribution.exp(), 1, generator=generator))
            else:
                token = int(distribution.argmax())
            ids.append(token)
            emitted.append(token)
            logprobs.append(float(distribution[token]))
            if token == end_id:
                return Drawn(emitted, logprobs, ended=True)
    return Drawn(emitted, logprobs, ended=False)


def sequence_logprobs(
    network: nn.Module, sequences: Sequence[Sequence[int]], temperature: float
) -> Tensor:
    """Return the log probability of each token given the tokens before it.

    Args:
        network: returns logits, see ``Policy.network``.
        sequences: token ids; the lengths may differ.
        temperature: softmax temperature; 0 counts as 1.

    Returns:
        float64 of shape (sequences, longest), always on the CPU; 0 for first tokens and for
        padding.
    """
    longest = max(len(sequence) for sequence in sequences)
    rows = [[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences]
    ids = torch.tensor(rows, device=_device(network))
    logits = network(ids)[:, :-1].double() / (temperature if temperature > _GREEDY else 1.0)
    known = torch.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:, None])[..., 0].cpu()
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    inside = torch.arange(1, longest) < lengths[:, None]
    return torch.cat([torch.zeros(len(sequences), 1, dtype=torch.float64), known * inside], dim=1)


def _device(network: nn.Module) -> torch.device:
    first = next(network.parameters(), None)
    return torch.device("cpu") if first is None else first.device
