"""Draw tokens from a network, and say how likely given tokens are under it. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor, nn

_GREEDY = 1e-6


@attrs.frozen
class Drawn:
    """One turn.

    Attributes:
        ids: emitted, the one that ends the turn included.
        logprobs: of each, in the distribution that it was drawn from.
        ended: whether the last one ends the turn.
    """

    ids: list[int]
    logprobs: list[float]
    ended: bool


def draw(
    network: nn.Module, prompt: Sequence[int], *, end_id: int, most: int, temperature: float, generator: torch.Generator
) -> Drawn:
    """Return a turn of at most ``most`` tokens; temperature 0 takes the likeliest token each time."""
    device = _device(network)
    ids = list(prompt)
    emitted: list[int] = []
    logprobs: list[float] = []
    with torch.no_grad():
        while len(emitted) < most:
            logits = network(torch.tensor([ids], device=device))[0, -1].cpu().double()
            distribution = torch.log_softmax(logits / (temperature if temperature > _GREEDY else 1.0), dim=-1)
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


def sequence_logprobs(network: nn.Module, sequences: Sequence[Sequence[int]], temperature: float) -> Tensor:
    """Return how likely each token is after those before it, float64 of shape (sequences, longest).

    The first token of a sequence has nothing before it, and 0 here; so has what is behind a sequence's end. Whatever
    the network is on, the answer is for the processor.
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
