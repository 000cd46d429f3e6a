"""Client of servers that take and return token ids; emitted tokens are never tokenised again.

The wires:

- ``sglang``: ``POST /generate {input_ids, sampling_params, return_logprob}``; the response has
  ``meta_info.output_token_logprobs``, a list of ``[logprob, token id, text]``;
- ``vllm``: ``POST /generate {prompt: {prompt_token_ids}, logprobs}``; the response has ``logprobs``, for each sequence
  a list of ``{token id: logprob}``;
- ``completions``: OpenAI's ``POST /v1/completions`` with token ids as prompt, as vLLM implements it.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from hyperruntime.errors import ModelError
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.agent.tool_calls import Message, settled_message
from hyperruntime.rollout.models.chat import as_ids, first_choice
from hyperruntime.rollout.models.server import Server
from hyperruntime.rollout.models.tokenizer import ChatTokenizer

_REMEMBERED_TOKENS = 16_000_000
Emission = tuple[tuple[int, ...], tuple[float, ...], str]


class TokenModel:
    """A model whose conversations this client renders.

    The client remembers the tokens of recent conversations. So the next prompt is the last prompt, the emitted tokens,
    and the tokens of the messages since then.

    Attributes:
        name: name of the model.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        tokenizer: ChatTokenizer,
        *,
        wire: str = "sglang",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a client.

        Args:
            name: name of the model on the server.
            server: the server.
            tokenizer: tokenizer of the model.
            wire: ``sglang``, ``vllm`` or ``completions``.
            extra: more sampling parameters.
        """
        self.name = name
        self._server, self._tokenizer, self._wire = server, tokenizer, wire
        self._extra = dict(extra or {})
        self._root = server.url.removesuffix("/v1")
        self._memory: OrderedDict[bytes, array[int]] = OrderedDict()
        self._remembered = 0

    async def complete(self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling) -> Completion:
        """Return the next turn.

        Args:
            messages: the conversation so far.
            tools: tool schemas in OpenAI's form.
            sampling: sampling parameters.

        Raises:
            ContextLengthError: the conversation is too long for the model.
            ModelError: see ``Model.complete``.
        """
        prompt = self._prompt(messages, tools)
        ids, logprobs, reason = await self._emit(prompt, sampling)
        text = self._tokenizer.decode(ids[:-1] if ids and ids[-1] == self._tokenizer.eos_id else ids)
        turn = 1 + sum(message.get("role") == "assistant" for message in messages)
        message = settled_message({"role": "assistant", "content": text}, turn)
        self._remember(_key([*messages, message], tools), [*prompt, *ids])
        return Completion(
            message=message,
            finish_reason=reason,
            usage={"prompt_tokens": len(prompt), "completion_tokens": len(ids)},
            prompt_ids=tuple(prompt),
            ids=ids,
            logprobs=logprobs,
        )

    async def close(self) -> None:
        """Close connections."""
        await self._server.close()

    def _prompt(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        """Return the tokens of a prompt: extend the remembered tokens of the last turn, else encode the whole text."""
        whole = self._tokenizer.render(messages, tools, prompt=True)
        last = max((n for n, message in enumerate(messages) if message.get("role") == "assistant"), default=None)
        if last is not None and (known := self._memory.get(_key(messages[: last + 1], tools))) is not None:
            since = self._since(messages[: last + 1], tools, whole, ended=known[-1] == self._tokenizer.eos_id)
            if since is not None:
                return [*known, *self._tokenizer.encode(since)]
        return self._tokenizer.encode(whole)

    def _since(self, spoken: Sequence[Message], tools: Sequence[Message], whole: str, *, ended: bool) -> str | None:
        """Return the text of a prompt after the last turn, or None if the template renders earlier turns differently.

        Args:
            spoken: the conversation up to the last turn.
            tools: tool schemas.
            whole: text of the prompt.
            ended: whether the emitted tokens end with the token that ends a turn.
        """
        told = self._tokenizer.render(spoken, tools, prompt=False)
        if not whole.startswith(told):
            return None
        eos = self._tokenizer.eos
        before, found, after = told.rpartition(eos)
        closing = found + after if found and not after.strip() and before else ""
        return (closing.removeprefix(eos) if ended else closing) + whole[len(told) :]

    async def _emit(self, prompt: list[int], sampling: Sampling) -> Emission:
        if self._wire == "sglang":
            parameters = {
                "temperature": sampling.temperature,
                "max_new_tokens": sampling.max_tokens,
                "stop_token_ids": [self._tokenizer.eos_id],
                "skip_special_tokens": False,
                **self._extra,
            }
            body: dict[str, Any] = {"input_ids": prompt, "sampling_params": parameters, "return_logprob": True}
            return read_sglang(await self._server.post(f"{self._root}/generate", body))
        asked = {
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": [self._tokenizer.eos_id],
            **({} if sampling.seed is None else {"seed": sampling.seed}),
            **self._extra,
        }
        if self._wire == "vllm":
            body = {"prompt": {"prompt_token_ids": prompt}, "logprobs": 0, **asked}
            return read_vllm(await self._server.post(f"{self._root}/generate", body))
        body = {"model": self.name, "prompt": prompt, "logprobs": 1, "return_token_ids": True, **asked}
        return read_completion(await self._server.post(f"{self._root}/v1/completions", body))

    def _remember(self, key: bytes, ids: list[int]) -> None:
        self._forget(key)
        self._memory[key] = array("q", ids)
        self._remembered += len(ids)
        while self._remembered > _REMEMBERED_TOKENS and len(self._memory) > 1:
            self._forget(next(iter(self._memory)))

    def _forget(self, key: bytes) -> None:
        self._remembered -= len(self._memory.pop(key, ()))


def read_sglang(answer: Mapping[str, Any]) -> Emission:
    """Return token ids, log probabilities and finish reason of SGLang's answer.

    Raises:
        ModelError: the answer has no token ids with log probabilities.
    """
    meta = answer.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    entries: Any = meta.get("output_token_logprobs")
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else reason
    try:
        return tuple(int(e[1]) for e in entries), tuple(float(e[0]) for e in entries), str(kind or "stop")
    except (TypeError, ValueError, IndexError, KeyError):
        raise ModelError(
            f"no meta_info.output_token_logprobs in the answer of /generate: {str(answer)[:300]}"
        ) from None


def read_vllm(answer: Mapping[str, Any]) -> Emission:
    """Return token ids, log probabilities and finish reason of the answer of vLLM's ``/generate``.

    Raises:
        ModelError: the answer has no token ids with log probabilities.
    """
    try:
        pairs = [
            next(iter((entry[0] if isinstance(entry, list) else entry).items())) for entry in answer["logprobs"][0]
        ]
        reason = (answer.get("finish_reasons") or ["stop"])[0]
        return tuple(int(token) for token, _ in pairs), tuple(float(lp) for _, lp in pairs), str(reason or "stop")
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, StopIteration):
        raise ModelError(f"no logprobs by token id in the answer of /generate: {str(answer)[:300]}") from None


def read_completion(answer: Mapping[str, Any]) -> Emission:
    """Return token ids, log probabilities and finish reason of vLLM's completion.

    Raises:
        ModelError: the answer has no token ids with log probabilities.
    """
    choice = first_choice(answer)
    ids, logprobs = as_ids(choice.get("token_ids")), choice.get("logprobs")
    given = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if ids is None or not isinstance(given, list) or not all(isinstance(one, (int, float)) for one in given):
        raise ModelError(f"no token_ids and logprobs.token_logprobs in the completion: {str(answer)[:300]}")
    return ids, tuple(float(one) for one in given), str(choice.get("finish_reason") or "stop")


def _key(messages: Sequence[Message], tools: Sequence[Message]) -> bytes:
    text = json.dumps([list(messages), list(tools)], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
