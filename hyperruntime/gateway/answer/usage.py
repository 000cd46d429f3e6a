"""Read the usage of an exchange from answers of all wire formats, and the generated tokens from
OpenAI's.

OpenAI's format has log probabilities but no token ids; vLLM sends them if the request sets
``return_token_ids``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyperruntime.gateway.formats import format_of
from hyperruntime.gateway.log.budget import Tokens
from hyperruntime.gateway.request.parse import ModelRequest
from hyperruntime.json_values import is_integer

_BYTES_PER_TOKEN = 4  # of English text, on average
_MOST_TOKENS = 10**9


def _count(usage: Mapping[str, Any], names: tuple[str, ...]) -> int:
    found = [usage.get(name) for name in names]
    return sum(min(n, _MOST_TOKENS) for n in found if is_integer(n) and n > 0)


def usage_of(path: str, message: Any) -> Tokens | None:  # noqa: ANN401 - JSON from a server
    """Return the usage that an answer of an endpoint, or one event of a stream, reports; None if it
    reports none.
    """
    wire = format_of(path)
    for place in wire.usage_at:
        usage = message
        for name in place:
            usage = usage.get(name) if isinstance(usage, dict) else None
        if isinstance(usage, dict) and usage:
            return Tokens(
                input=_count(usage, wire.input_counts), output=_count(usage, wire.output_counts)
            )
    return None


def estimate(request_bytes: int, answer_bytes: int) -> Tokens:
    """Estimate the usage from sizes in bytes, for an answer without usage or a truncated stream."""
    return Tokens(
        input=request_bytes // _BYTES_PER_TOKEN,
        output=answer_bytes // _BYTES_PER_TOKEN,
        estimated=True,
    )


class StreamUsage:
    """Follows the usage of a stream: several events may report it, with growing numbers."""

    def __init__(self) -> None:
        """Start with unknown usage."""
        self._input = self._output = 0
        self._known = False

    def see(self, tokens: Tokens | None) -> None:
        """Record the usage that an event reports; None if it reports none."""
        if tokens is not None:
            self._known = True
            self._input, self._output = (
                max(self._input, tokens.input),
                max(self._output, tokens.output),
            )

    def total(self, *, complete: bool, request_bytes: int, answer_bytes: int) -> Tokens:
        """Return the usage of the stream.

        Args:
            complete: whether the stream was read to its end. If not, the output is at least the
                estimate.
            request_bytes: size of the request's body, for the estimate.
            answer_bytes: size of the stream, for the estimate.
        """
        guess = estimate(request_bytes, answer_bytes)
        if self._known and complete:
            return Tokens(input=self._input, output=self._output)
        # most servers report the output in the last event, which has not come
        return Tokens(
            input=self._input or guess.input, output=max(self._output, guess.output), estimated=True
        )


def asks_for_tokens(call: ModelRequest, *, ids: bool) -> dict[str, Any]:
    """Return the request members that ask for tokens, without those that the client set itself.

    Args:
        call: the client's request.
        ids: whether the upstream can send token ids.
    """
    asked = dict(call.endpoint.asks_tokens)
    if asked and ids:
        asked["return_token_ids"] = True
    return {name: value for name, value in asked.items() if name in call.unset}


class GeneratedTokens:
    """Collects the tokens of one exchange, choice by choice."""

    def __init__(self) -> None:
        """Start with no tokens."""
        self._choices: dict[int, dict[str, list[Any]]] = {}
        self._prompt_ids: list[Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the tokens so far as JSON values.

        ``prompt_token_ids`` is a list or None. Each of ``choices`` has ``index`` and, if the
        upstream sent them, ``tokens``, ``logprobs`` and ``token_ids``: parallel lists.
        """
        choices = [{"index": index, **parts} for index, parts in sorted(self._choices.items())]
        return {"prompt_token_ids": self._prompt_ids, "choices": choices}

    def see(self, message: Any) -> None:  # noqa: ANN401 - JSON from a server
        """Add the tokens of a whole answer, or of an event's data."""
        if not isinstance(message, dict):
            return
        self._see_prompt(message)
        choices = message.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(index := choice.get("index", 0), int):
                self._see_prompt(choice)
                parts = self._choices.setdefault(index, {})
                for name, values in _generated(choice).items():
                    parts.setdefault(name, []).extend(values)

    def _see_prompt(self, holder: Mapping[str, Any]) -> None:
        ids = holder.get("prompt_token_ids")
        if isinstance(ids, list):
            self._prompt_ids = ids


def _generated(choice: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return a choice's tokens, from the format of chats or of completions."""
    found: dict[str, list[Any]] = {}
    if isinstance(ids := choice.get("token_ids"), list):
        found["token_ids"] = ids
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return found
    if isinstance(content := logprobs.get("content"), list):
        entries = [entry for entry in content if isinstance(entry, dict)]
        found["tokens"] = [entry.get("token") for entry in entries]
        found["logprobs"] = [entry.get("logprob") for entry in entries]
    elif isinstance(tokens := logprobs.get("tokens"), list):
        found["tokens"] = tokens
        found["logprobs"] = (
            values if isinstance(values := logprobs.get("token_logprobs"), list) else []
        )
    return found
