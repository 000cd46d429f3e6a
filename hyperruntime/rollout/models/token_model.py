"""Client of servers that take and return token ids; emitted tokens are never tokenised again.

The wires:

- ``sglang``: ``POST /generate {input_ids, sampling_params, return_logprob}``; the response has
  ``meta_info.output_token_logprobs``, a list of ``[logprob, token id, text]``;
- ``vllm``: ``POST /generate {prompt: {prompt_token_ids}, logprobs}``; the response has
  ``logprobs``, for each sequence a list of ``{token id: logprob}``;
- ``completions``: OpenAI's ``POST /v1/completions`` with token ids as prompt, as vLLM implements
  it.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hyperruntime.errors import ModelError
from hyperruntime.gateway.answer.judgement import GENERATE_PATH
from hyperruntime.gateway.formats.openai import COMPLETIONS_PATH
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.agent.tool_calls import Message, normalized_message
from hyperruntime.rollout.models.server import Server
from hyperruntime.rollout.models.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from hyperruntime.rollout.models import ModelOptions

_REMEMBERED_TOKENS = 16_000_000
Emission = tuple[tuple[int, ...], tuple[float, ...], str]


class TokenModel:
    """A model whose conversations this client renders.

    The client remembers the tokens of recent conversations. So the next prompt is the last prompt,
    the emitted tokens, and the tokens of the messages since then.

    Attributes:
        name: name of the model.
    """

    def __init__(self, options: ModelOptions, tokenizer: ChatTokenizer) -> None:
        """Create a client.

        Args:
            options: the model and its server; ``extra`` has more sampling parameters.
            tokenizer: tokenizer of the model.
        """
        self.name = options.name
        self._server = Server(options)
        self._tokenizer = tokenizer
        self._wire = options.wire
        self._extra = options.extra
        self._root = self._server.url.removesuffix("/v1")
        self._memory: OrderedDict[bytes, array[int]] = OrderedDict()
        self._remembered = 0

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
        prompt = self._prompt(messages, tools)
        ids, logprobs, reason = await self._emit(prompt, sampling)
        text = self._tokenizer.decode(
            ids[:-1] if ids and ids[-1] == self._tokenizer.eos_id else ids
        )
        turn = 1 + sum(message.get("role") == "assistant" for message in messages)
        message = normalized_message({"role": "assistant", "content": text}, turn)
        self._remember(_key([*messages, message], tools), [*prompt, *ids])
        return Completion(
            message=message,
            finish_reason=reason,
            usage={"prompt_tokens": len(prompt), "completion_tokens": len(ids)},
            prompt_ids=tuple(prompt),
            ids=ids,
            logprobs=logprobs,
        )

    def remember(
        self, messages: Sequence[Message], tools: Sequence[Message], completion: Completion
    ) -> None:
        """Remember the tokens of a turn that another client received, so that the next prompt
        continues them.

        Args:
            messages: the conversation before the turn.
            tools: tool schemas in OpenAI's form.
            completion: the turn.
        """
        if completion.prompt_ids is not None and completion.ids is not None:
            key = _key([*messages, completion.message], tools)
            self._remember(key, [*completion.prompt_ids, *completion.ids])

    async def close(self) -> None:
        """Close connections."""
        await self._server.close()

    def _prompt(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        """Return the tokens of a prompt: extend the remembered tokens of the last turn, else encode
        the whole text.
        """
        whole = self._tokenizer.render(messages, tools, prompt=True)
        last = max(
            (n for n, message in enumerate(messages) if message.get("role") == "assistant"),
            default=None,
        )
        if (
            last is not None
            and (known := self._memory.get(_key(messages[: last + 1], tools))) is not None
        ):
            since = self._since(
                messages[: last + 1], tools, whole, ended=known[-1] == self._tokenizer.eos_id
            )
            if since is not None:
                return [*known, *self._tokenizer.encode(since)]
        return self._tokenizer.encode(whole)

    def _since(
        self, spoken: Sequence[Message], tools: Sequence[Message], whole: str, *, ended: bool
    ) -> str | None:
        """Return the text of a prompt after the last turn, or None if the template renders earlier
        turns differently.

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
        """Send a prompt; return token ids, log probabilities and finish reason of the answer.

        Raises:
            ModelError: the answer has no token ids with log probabilities.
        """
        path, body, read = self._request(prompt, sampling)
        answer = await self._server.post(f"{self._root}{path}", path, body)
        try:
            return read(answer)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, StopIteration):
            why = (
                f"the answer of {path} has no token ids with log probabilities: {str(answer)[:300]}"
            )
            raise ModelError(f"{why}; check --wire {self._wire}") from None

    def _request(
        self, prompt: list[int], sampling: Sampling
    ) -> tuple[str, dict[str, Any], Callable[[Mapping[str, Any]], Emission]]:
        """Return the path, the body and the reader of the answer of the wire."""
        asked: dict[str, Any] = {
            "temperature": sampling.temperature,
            "stop_token_ids": [self._tokenizer.eos_id],
        }
        if self._wire == "sglang":
            asked |= {
                "max_new_tokens": sampling.max_tokens,
                "skip_special_tokens": False,
                **self._extra,
            }
            body = {"input_ids": prompt, "sampling_params": asked, "return_logprob": True}
            return GENERATE_PATH, body, _read_sglang
        asked["max_tokens"] = sampling.max_tokens
        if sampling.seed is not None:
            asked["seed"] = sampling.seed
        asked |= self._extra
        if self._wire == "vllm":
            return (
                GENERATE_PATH,
                {"prompt": {"prompt_token_ids": prompt}, "logprobs": 0, **asked},
                _read_vllm,
            )
        body = {
            "model": self.name,
            "prompt": prompt,
            "logprobs": 1,
            "return_token_ids": True,
            **asked,
        }
        return COMPLETIONS_PATH, body, _read_completion

    def _remember(self, key: bytes, ids: list[int]) -> None:
        self._forget(key)
        self._memory[key] = array("q", ids)
        self._remembered += len(ids)
        while self._remembered > _REMEMBERED_TOKENS and len(self._memory) > 1:
            self._forget(next(iter(self._memory)))

    def _forget(self, key: bytes) -> None:
        self._remembered -= len(self._memory.pop(key, ()))


def _read_sglang(answer: Mapping[str, Any]) -> Emission:
    meta = answer["meta_info"]
    entries = meta["output_token_logprobs"]
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else reason
    return (
        tuple(int(e[1]) for e in entries),
        tuple(float(e[0]) for e in entries),
        str(kind or "stop"),
    )


def _read_vllm(answer: Mapping[str, Any]) -> Emission:
    entries = [entry[0] if isinstance(entry, list) else entry for entry in answer["logprobs"][0]]
    pairs = [next(iter(entry.items())) for entry in entries]
    reason = (answer.get("finish_reasons") or ["stop"])[0]
    return (
        tuple(int(token) for token, _ in pairs),
        tuple(float(lp) for _, lp in pairs),
        str(reason or "stop"),
    )


def _read_completion(answer: Mapping[str, Any]) -> Emission:
    choice = answer["choices"][0]
    ids = choice["token_ids"]
    logprobs = choice["logprobs"]["token_logprobs"]
    return (
        tuple(map(int, ids)),
        tuple(map(float, logprobs)),
        str(choice.get("finish_reason") or "stop"),
    )


def _key(messages: Sequence[Message], tools: Sequence[Message]) -> bytes:
    text = json.dumps([list(messages), list(tools)], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
