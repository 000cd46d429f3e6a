"""A small causal transformer. Imports torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class TinyTransformer(nn.Module):
    """A decoder-only transformer with learned positions and pre-layer normalisation."""

    def __init__(self, tokens: int, *, context: int, width: int, layers: int = 2, heads: int = 4) -> None:
        """Create a network with random weights.

        Args:
            tokens: number of tokens.
            context: maximum number of positions.
            width: width of the embeddings; a multiple of ``heads``.
            layers: number of blocks.
            heads: attention heads per block.
        """
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits of shape (sequences, positions, tokens) for int64 ids of shape (sequences, positions)."""
        hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class _Block(nn.Module):
    """Causal self-attention, then a two-layer perceptron at each position."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixing, self.joining = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        count, length, width = hidden.shape
        mixed = self.mixing(self.first(hidden)).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.joining(seen.transpose(1, 2).reshape(count, length, width))
        out: Tensor = hidden + self.narrow(functional.gelu(self.wide(self.second(hidden))))
        return out
