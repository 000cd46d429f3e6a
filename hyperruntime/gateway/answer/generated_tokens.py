"""Collect the generated tokens and their log probabilities from answers in OpenAI's format.

OpenAI's format has no token ids; vLLM sends them if the request sets ``return_token_ids``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyperruntime.gateway.request.parse import ModelRequest

_ASK: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"logprobs": True},
    "/v1/completions": {"logprobs": 0},
}


def asks_for_tokens(call: ModelRequest, *, ids: bool) -> dict[str, Any]:
    """Return the request members that ask for tokens, without those that the client set itself.

    Args:
        call: the client's request.
        ids: whether the upstream can send token ids.
    """
    asked = dict(_ASK.get(call.path, {}))
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

        ``prompt_token_ids`` is a list or None. Each of ``choices`` has ``index`` and, if the upstream sent them,
        ``tokens``, ``logprobs`` and ``token_ids``: parallel lists.
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
                self._see_choice(self._choices.setdefault(index, {}), choice)

    def _see_prompt(self, holder: Mapping[str, Any]) -> None:
        ids = holder.get("prompt_token_ids")
        if isinstance(ids, list):
            self._prompt_ids = ids

    def _see_choice(self, parts: dict[str, list[Any]], choice: Mapping[str, Any]) -> None:
        for name, values in _generated(choice).items():
            parts.setdefault(name, []).extend(values)


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
        found["logprobs"] = list(logprobs.get("token_logprobs") or ())
    return found
