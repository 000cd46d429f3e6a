"""The policy interface, and a tiny policy. Imports torch.

Your own policy is a class with the members of ``Policy``; pass it with ``--policy module:Class``.
The server, GRPO and the checkpoints work with any policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

SPECIALS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")


class Policy(Protocol):
    """The model that is trained.

    Attributes:
        name: name of the model in records.
        network: maps token ids, int64 of shape (sequences, positions), to logits of shape
            (sequences, positions, tokens). It must be causal, because sequences are padded at the
            end.
        end_id: the token that ends a turn.
        context: maximum number of positions.
    """

    name: str
    network: nn.Module
    end_id: int
    context: int

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Return the token ids of the prompt, up to the start of the next assistant turn.

        Args:
            messages: the conversation in OpenAI's form.
            tools: tool schemas in OpenAI's form.
        """
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of emitted tokens, without the end token."""
        ...


class TinyPolicy:
    """A small transformer over words and bytes, with tool calls in Hermes' form."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        name: str = "tiny",
        width: int = 64,
        context: int = 256,
        seed: int = 0,
    ) -> None:
        """Create a policy with random weights.

        Args:
            words: words that have their own token.
            name: name of the model in records.
            width: width of the embeddings.
            context: maximum number of positions.
            seed: seed of the weights.
        """
        self.name = name
        self.context = context
        self.tokenizer = Tokenizer(words)
        self.end_id = SPECIALS.index("<|end|>")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network: nn.Module = TinyTransformer(
                self.tokenizer.size, context=context, width=width
            )

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Return the token ids of the prompt, which starts with the names of the tools.

        Args:
            messages: the conversation in OpenAI's form.
            tools: tool schemas in OpenAI's form.
        """
        ids: list[int] = []
        if tools:
            names = ", ".join(str(tool["function"]["name"]) for tool in tools)
            ids += self._turn("system", f"tools: {names}")
        for message in messages:
            ids += self._turn(str(message["role"]), _spoken(message))
        return [*ids, SPECIALS.index("<|assistant|>")]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of emitted tokens, without the end token."""
        return self.tokenizer.decode(token for token in ids if token != self.end_id)

    def _turn(self, role: str, text: str) -> list[int]:
        return [SPECIALS.index(f"<|{role}|>"), *self.tokenizer.encode(text), self.end_id]


def _spoken(message: Mapping[str, Any]) -> str:
    """Return a message's text with its tool calls in Hermes' form; arguments that are text stay
    unchanged.
    """
    content = message.get("content") or ""
    text = (
        content
        if isinstance(content, str)
        else "".join(str(part.get("text", "")) for part in content)
    )
    if "<tool_call>" in text:
        return text
    for function in (call["function"] for call in message.get("tool_calls") or ()):
        given = function["arguments"]
        arguments = given if isinstance(given, str) else json.dumps(given)
        text += (
            f'<tool_call>{{"name": {json.dumps(function["name"])}, "arguments": '
            f"{arguments}}}</tool_call>"
        )
    return text


class Tokenizer:
    """Tokens for a few words and for all bytes, so that any text can be encoded and decoded.

    Token ids are ordered: special tokens, 256 bytes, words; ``encode`` never produces a special
    token.

    Attributes:
        size: number of tokens.
    """

    def __init__(self, words: Iterable[str]) -> None:
        """Set the words that have their own token; the longest match wins."""
        own = list(dict.fromkeys(word.encode() for word in words))
        plain = [*(bytes([value]) for value in range(256)), *own]
        self._texts = [*(name.encode() for name in SPECIALS), *plain]
        self._ids = {text: token for token, text in enumerate(plain, len(SPECIALS))}
        longest_first = sorted(own, key=len, reverse=True)
        self._next = re.compile(b"|".join([*map(re.escape, longest_first), b"."]), re.DOTALL)
        self.size = len(self._texts)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return [self._ids[found] for found in self._next.findall(text.encode("utf-8", "replace"))]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens; special tokens become their names, invalid UTF-8 becomes
        U+FFFD.
        """
        return b"".join(self._texts[token] for token in ids).decode("utf-8", "replace")


class TinyTransformer(nn.Module):
    """A decoder-only transformer with learned positions and pre-layer normalisation."""

    def __init__(
        self, tokens: int, *, context: int, width: int, layers: int = 2, heads: int = 4
    ) -> None:
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
        """Return logits of shape (sequences, positions, tokens) for int64 ids of shape (sequences,
        positions).
        """
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
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)
        self.mixing = nn.Linear(width, 3 * width)
        self.joining = nn.Linear(width, width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        count, length, width = hidden.shape
        mixed = self.mixing(self.first(hidden)).view(
            count, length, 3, self.heads, width // self.heads
        )
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.joining(seen.transpose(1, 2).reshape(count, length, width))
        out: Tensor = hidden + self.narrow(functional.gelu(self.wide(self.second(hidden))))
        return out


_: type[Policy] = TinyPolicy
