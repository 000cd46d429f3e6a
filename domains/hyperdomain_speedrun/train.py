"""Train a small language model within a budget of processor seconds. Change this file."""

from collections.abc import Callable

import torch
from torch import nn

CONTEXT = 64
WIDTH = 64
HEADS = 4
LAYERS = 1
BATCH = 16
STEPS = 100
LEARNING_RATE = 0.05


class Model(nn.Module):
    """A transformer that predicts the next token at each position."""

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(symbols, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS)
        self.output = nn.Linear(WIDTH, symbols)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits: (batch, length, symbols) for tokens: (batch, length)."""
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device)
        later = torch.full((length, length), float("-inf"), device=tokens.device).triu(1)
        return self.output(self.layers(self.tokens(tokens) + self.positions(places), mask=later))


def build(symbols: int) -> nn.Module:
    """Return the model, before training."""
    return Model(symbols)


def train(model: nn.Module, tokens: torch.Tensor, seconds_left: Callable[[], float]) -> None:
    """Train the model in place; stop before the budget is used up.

    Args:
        model: what ``build`` returned.
        tokens: the whole text, int64.
        seconds_left: returns the processor seconds that are left.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        if seconds_left() < 1:
            break
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH, 1), device=tokens.device)
        rows = tokens[starts + torch.arange(CONTEXT + 1, device=tokens.device)]
        logits = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
