"""The policy seam, and the tiny one that is shipped. Imports torch.

A policy of your own is a class with the members of ``Policy``; ``--policy module:Class`` names it. Everything else
here (server, GRPO, checkpoints) works with it as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hypertrainer_grpo.network import TinyTransformer
from hypertrainer_grpo.tokenizer import Tokenizer


class Policy(Protocol):
    """What is trained.

    Attributes:
        name: of the model, for records.
        network: ids, int64 of shape (sequences, positions), to logits of shape (sequences, positions, tokens). A
            position sees itself and what is before it, nothing after: sequences are padded at their end.
        end_id: the token that ends a turn.
        context: how many positions the network has.
    """

    name: str
    network: nn.Module
    end_id: int
    context: int

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the prompt: the conversation up to where the assistant begins to speak."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Return what emitted tokens say, without the one that ends a turn."""
        ...


class TinyPolicy:
    """A transformer of some thousand weights over words and bytes; speaks Hermes' form of tool calls."""

    def __init__(
        self, words: Sequence[str], *, name: str = "tiny", width: int = 64, context: int = 256, seed: int = 0
    ) -> None:
        """Make one with random weights.

        Args:
            words: what has a token of its own.
            name: for records.
            width: of its embeddings.
            context: its longest sequence.
            seed: of the weights.
        """
        self.name = name
        self.context = context
        self.tokenizer = Tokenizer(tuple(words))
        self.end_id = self.tokenizer.special("<|end|>")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network: nn.Module = TinyTransformer(self.tokenizer.size, context=context, width=width)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the prompt; the tools' names stand before everything."""
        ids: list[int] = []
        if tools:
            names = ", ".join(str(tool["function"]["name"]) for tool in tools)
            ids += self._turn("system", f"tools: {names}")
        for message in messages:
            ids += self._turn(str(message["role"]), _spoken(message))
        return [*ids, self.tokenizer.special("<|assistant|>")]

    def text(self, ids: Sequence[int]) -> str:
        """Return what was emitted."""
        return self.tokenizer.decode(token for token in ids if token != self.end_id)

    def _turn(self, role: str, text: str) -> list[int]:
        return [self.tokenizer.special(f"<|{role}|>"), *self.tokenizer.encode(text), self.end_id]


def _spoken(message: Mapping[str, Any]) -> str:
    """Return a message's text, with tool calls as the model wrote or would write them."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)
    calls = message.get("tool_calls") or ()
    return text if "<tool_call>" in text else text + "".join(call_text(call["function"]) for call in calls)


def call_text(function: Mapping[str, Any]) -> str:
    """Return a tool call in Hermes' form; the text of arguments stays as the model wrote it."""
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f'<tool_call>{{"name": {json.dumps(function["name"])}, "arguments": {text}}}</tool_call>'


def parameters_of(policy: Policy) -> list[Tensor]:
    """Return copies of all weights, to compare."""
    return [parameter.detach().clone() for parameter in policy.network.parameters()]


def _is_a_policy(policy: TinyPolicy) -> Policy:
    return policy
