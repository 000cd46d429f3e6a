"""The model seam: whatever answers a conversation with the next assistant message, and says how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs


@attrs.frozen(kw_only=True)
class Sampling:
    """How to sample.

    Attributes:
        temperature: of the softmax; 0 is greedy.
        max_tokens: of one turn.
        seed: for servers that take one.
    """

    temperature: float = 1.0
    max_tokens: int = 4096
    seed: int | None = None


@attrs.frozen(kw_only=True)
class Completion:
    """One assistant turn as a server gave it.

    Attributes:
        message: OpenAI's form: ``role``, ``content``, and ``tool_calls`` where the server parsed them.
        finish_reason: ``stop``, ``length``, ``tool_calls``.
        usage: ``prompt_tokens`` and ``completion_tokens``.
        prompt_ids: the prompt's token ids, or None where the server does not say.
        ids: the emitted token ids, or None.
        logprobs: one for each emitted token, or None.
    """

    message: Mapping[str, Any]
    finish_reason: str
    usage: Mapping[str, int]
    prompt_ids: Sequence[int] | None = None
    ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None


class Model(Protocol):
    """A served model.

    Attributes:
        name: for records.
    """

    name: str

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], sampling: Sampling
    ) -> Completion:
        """Return the next turn.

        Raises:
            ModelError: the server is gone, refuses, or answers with what no turn can be made of.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
