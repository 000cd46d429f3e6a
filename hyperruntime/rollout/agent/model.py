"""The model interface: a model returns the next assistant message of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs


@attrs.frozen(kw_only=True)
class Sampling:
    """Sampling parameters.

    Attributes:
        temperature: softmax temperature; 0 is greedy.
        max_tokens: maximum tokens of one turn.
        seed: for servers that support a seed.
    """

    temperature: float = 1.0
    max_tokens: int = 4096
    seed: int | None = None


@attrs.frozen(kw_only=True)
class Completion:
    """One assistant turn as the server returned it.

    Attributes:
        message: OpenAI's form: ``role``, ``content``, and ``tool_calls`` if the server parsed them.
        finish_reason: the server's word, see
            :func:`~hyperruntime.gateway.formats.turn_end.turn_end`.
        usage: ``prompt_tokens`` and ``completion_tokens``.
        prompt_ids: token ids of the prompt, or None if the server does not return them.
        ids: the emitted token ids, or None.
        logprobs: one log probability per emitted token, or None.
    """

    message: Mapping[str, Any] = attrs.field(hash=False)
    finish_reason: str
    usage: Mapping[str, int] = attrs.field(hash=False)
    prompt_ids: Sequence[int] | None = attrs.field(default=None, hash=False)
    ids: Sequence[int] | None = attrs.field(default=None, hash=False)
    logprobs: Sequence[float] | None = attrs.field(default=None, hash=False)


class Model(Protocol):
    """A served model.

    A member is optional: ``remember(messages, tools, completion)`` is called with each turn that is
    played back from a journal and that this object may not have seen.

    Attributes:
        name: name of the model in records.
    """

    name: str

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
    ) -> Completion:
        """Return the next turn.

        Args:
            messages: the conversation so far.
            tools: tool schemas in OpenAI's form.
            sampling: sampling parameters.

        Raises:
            ContextLengthError: the conversation is too long for the model.
            ModelError: the server cannot be reached, rejects the request, or repeats invalid
                responses or turns that broke off.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
