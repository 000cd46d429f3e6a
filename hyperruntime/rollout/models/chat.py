"""Client of servers with OpenAI's chat completions: OpenAI, vLLM, SGLang, LiteLLM, the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hyperruntime.gateway.formats.openai import CHAT_PATH
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.agent.tool_calls import Message, sendable
from hyperruntime.rollout.models.server import Server, ServerRefusedError

if TYPE_CHECKING:
    from hyperruntime.rollout.models import ModelOptions

# Fields that a server may not know, each with its other name, or None to leave it out.
_OPTIONAL: Mapping[str, str | None] = {
    "return_token_ids": None,
    "logprobs": None,
    "seed": None,
    "max_tokens": "max_completion_tokens",
}


class ChatModel:
    """A model whose server renders the conversation, and may return token ids.

    With ``return_token_ids``, vLLM (0.10.2 and newer) returns ``prompt_token_ids`` and, for each
    choice, ``token_ids``. If a server rejects an optional field, later requests leave it out, or
    use its other name.

    Attributes:
        name: name of the model.
    """

    def __init__(self, options: ModelOptions) -> None:
        """Create a client; fields of ``options.extra`` override our own fields."""
        self.name = options.name
        self._server = Server(options)
        self._extra = options.extra
        self._unknown: set[str] = set()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling
    ) -> Completion:
        """Return the next turn.

        Args:
            messages: the conversation so far.
            tools: tool schemas in OpenAI's form.
            sampling: sampling parameters.

        Raises:
            ContextLengthError: the conversation is too long for the model.
            ModelError: see ``Model.complete``.
        """
        while True:
            body = self._body(messages, tools, sampling)
            try:
                answer = await self._server.post(
                    f"{self._server.url}/chat/completions", CHAT_PATH, body
                )
            except ServerRefusedError as error:
                if not self._learn(error, body):
                    raise
                continue
            return _read_chat(answer)

    async def close(self) -> None:
        """Close connections."""
        await self._server.close()

    def _body(
        self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": sendable(messages),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "logprobs": True,
            "return_token_ids": True,
        }
        if tools:
            body["tools"] = list(tools)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        for name in self._unknown & body.keys():
            value = body.pop(name)
            other = _OPTIONAL[name]
            if other is not None:
                body[other] = value
        return {**body, **self._extra}

    def _learn(self, error: ServerRefusedError, body: Mapping[str, Any]) -> bool:
        """Remember the optional fields that the server rejects; return whether there are any."""
        if error.status not in (400, 403, 422):
            return False
        refused = {
            name
            for name in _OPTIONAL
            if name in body and name not in self._extra and name in error.text
        }
        self._unknown |= refused
        return bool(refused)


def _read_chat(answer: Mapping[str, Any]) -> Completion:
    """Return the turn of a chat completion that was judged usable, so it has a choice with a
    message.
    """
    choice = answer["choices"][0]
    ids = _ids(choice.get("token_ids"))
    prompt_ids = _ids(answer.get("prompt_token_ids", choice.get("prompt_token_ids")))
    return Completion(
        message=choice["message"],
        finish_reason=str(choice.get("finish_reason") or "stop"),
        usage=_usage(answer, prompt_ids, ids),
        prompt_ids=prompt_ids,
        ids=ids,
        logprobs=_logprobs(choice.get("logprobs")),
    )


def _usage(
    answer: Mapping[str, Any], prompt_ids: Sequence[int] | None, ids: Sequence[int] | None
) -> dict[str, int]:
    """Return the token usage of an answer; missing numbers are counted from the token ids."""
    said = answer.get("usage")
    said = said if isinstance(said, dict) else {}
    counted = {"prompt_tokens": len(prompt_ids or ()), "completion_tokens": len(ids or ())}
    return {
        name: value if isinstance(value := said.get(name), int) else count
        for name, count in counted.items()
    }


def _ids(value: object) -> tuple[int, ...] | None:
    """Return a list of token ids as a tuple, or None if the value is not such a list."""
    if not isinstance(value, list) or not all(isinstance(token, int) for token in value):
        return None
    return tuple(value)


def _logprobs(value: object) -> tuple[float, ...] | None:
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list):
        return None
    found = [entry.get("logprob") for entry in content if isinstance(entry, dict)]
    numbers = tuple(float(one) for one in found if isinstance(one, (int, float)))
    return numbers if numbers and len(numbers) == len(found) else None
