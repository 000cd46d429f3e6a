"""The policy interface, and a tiny policy. Imports torch.

Your own policy is a class with the members of ``Policy``; pass it with ``--policy module:Class``. The server, GRPO and
the checkpoints work with any policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from hypertrainer_grpo.network import TinyTransformer
from hypertrainer_grpo.tokenizer import Tokenizer


class Policy(Protocol):
    """The model that is trained.

    Attributes:
        name: name of the model in records.
        network: maps token ids, int64 of shape (sequences, positions), to logits of shape (sequences, positions,
            tokens). It must be causal, because sequences are padded at the end.
        end_id: the token that ends a turn.
        context: maximum number of positions.
    """

    name: str
    network: nn.Module
    end_id: int
    context: int

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
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
        self, words: Sequence[str], *, name: str = "tiny", width: int = 64, context: int = 256, seed: int = 0
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
        self.tokenizer = Tokenizer(tuple(words))
        self.end_id = self.tokenizer.special("<|end|>")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network: nn.Module = TinyTransformer(self.tokenizer.size, context=context, width=width)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
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
        return [*ids, self.tokenizer.special("<|assistant|>")]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of emitted tokens, without the end token."""
        return self.tokenizer.decode(token for token in ids if token != self.end_id)

    def _turn(self, role: str, text: str) -> list[int]:
        return [self.tokenizer.special(f"<|{role}|>"), *self.tokenizer.encode(text), self.end_id]


def _spoken(message: Mapping[str, Any]) -> str:
    """Return a message's text with its tool calls in Hermes' form."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)
    calls = message.get("tool_calls") or ()
    return text if "<tool_call>" in text else text + "".join(call_text(call["function"]) for call in calls)


def call_text(function: Mapping[str, Any]) -> str:
    """Return a tool call in Hermes' form; arguments that are text stay unchanged."""
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f'<tool_call>{{"name": {json.dumps(function["name"])}, "arguments": {text}}}</tool_call>'


_: type[Policy] = TinyPolicy
