"""A model server for tests that reports token ids, in the formats of SGLang and vLLM. Needs
aiohttp.

It has ``/generate`` of both, ``/v1/completions`` and ``/v1/chat/completions`` with
``return_token_ids``. A function maps the prompt's text to the answer. The log probability of a
token depends only on the turn and on its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

from hyperruntime.rollout.agent.tool_calls import normalized_message
from hyperruntime.rollout.models.tokenizer import ChatTokenizer
from hyperruntime.rollout.run_files.record import Segment
from tests.doubles.byte_tokenizer import ByteTokenizer
from tests.doubles.upstream import Received, Reply, json_reply, scripted_upstream

Speak = Callable[[str], str]


@attrs.frozen(kw_only=True)
class Emitted:
    """One turn of the server.

    Attributes:
        prompt_ids: tokens of the prompt.
        ids: emitted tokens.
        logprobs: log probabilities of the emitted tokens.
        text: text of the emitted tokens, without the end mark.
        finish_reason: ``stop`` or ``length``.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: str


class TokenServer:
    """The state of a running token server.

    Attributes:
        url: base URL, with ``/v1``.
        turns: all turns, in order.
        received: the bodies of all requests, in order.
        tokenizer: the model's tokenizer.
    """

    def __init__(
        self, speak: Speak, *, tokenizer: ChatTokenizer | None = None, parses_tools: bool = True
    ) -> None:
        """Store the settings; :func:`token_server` starts the server.

        Args:
            speak: maps the prompt's text to the answer's text.
            tokenizer: the model's tokenizer; None means :class:`ByteTokenizer`.
            parses_tools: whether chat completions have ``tool_calls``; else calls stay in the text.
        """
        self.url = ""
        self.turns: list[Emitted] = []
        self.received: list[Mapping[str, Any]] = []
        self.tokenizer: ChatTokenizer = tokenizer or ByteTokenizer()
        self._speak, self._parses_tools = speak, parses_tools

    def answer(self, request: Received) -> Reply:
        """Record a request and return the reply."""
        body = request.body
        self.received.append(body)
        if request.path == "/generate":
            return json_reply(self._sglang(body) if "input_ids" in body else self._vllm(body))
        if request.path == "/v1/completions":
            return json_reply(self._completion(body))
        if request.path == "/v1/chat/completions":
            return json_reply(self._chat(body))
        return json_reply({"error": {"message": f"no {request.path} here"}}, status=404)

    def _emit(self, prompt: Sequence[int], limit: int) -> Emitted:
        said = self.tokenizer.encode(self._speak(self.tokenizer.decode(prompt)))
        ids = [*said, self.tokenizer.eos_id][:limit]
        turn = Emitted(
            prompt_ids=tuple(prompt),
            ids=tuple(ids),
            logprobs=tuple(-(1 + len(self.turns)) / (1 + place) for place in range(len(ids))),
            text=self.tokenizer.decode(ids[: len(said)]),
            finish_reason="stop" if len(ids) > len(said) else "length",
        )
        self.turns.append(turn)
        return turn

    def _sglang(self, body: Mapping[str, Any]) -> dict[str, Any]:
        turn = self._emit(body["input_ids"], body["sampling_params"]["max_new_tokens"])
        entries: list[list[Any]] = [
            [lp, token, None] for token, lp in zip(turn.ids, turn.logprobs, strict=True)
        ]
        reason = {"type": turn.finish_reason}
        return {
            "text": turn.text,
            "meta_info": {"finish_reason": reason, "output_token_logprobs": entries},
        }

    def _vllm(self, body: Mapping[str, Any]) -> dict[str, Any]:
        turn = self._emit(body["prompt"]["prompt_token_ids"], body["max_tokens"])
        entries = [{str(token): lp} for token, lp in zip(turn.ids, turn.logprobs, strict=True)]
        return {"text": [turn.text], "logprobs": [entries], "finish_reasons": [turn.finish_reason]}

    def _completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        turn = self._emit(body["prompt"], body["max_tokens"])
        choice: dict[str, Any] = {
            "index": 0,
            "text": turn.text,
            "finish_reason": turn.finish_reason,
        }
        choice["token_ids"] = list(turn.ids)
        logprobs: dict[str, Any] = {
            "token_logprobs": list(turn.logprobs),
            "tokens": [str(token) for token in turn.ids],
        }
        return {
            "object": "text_completion",
            "choices": [{**choice, "logprobs": logprobs}],
            "usage": _usage(turn),
        }

    def _chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        prompt = self.tokenizer.encode(
            self.tokenizer.render(body["messages"], body.get("tools", ()), prompt=True)
        )
        turn = self._emit(prompt, body.get("max_tokens", 1 << 30))
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if self._parses_tools:
            message = normalized_message(message, len(self.turns))
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "finish_reason": turn.finish_reason,
        }
        if message.get("tool_calls"):
            choice["finish_reason"] = "tool_calls"
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "", "logprob": lp} for lp in turn.logprobs]}
        answer: dict[str, Any] = {
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(turn),
        }
        if body.get("return_token_ids"):
            choice["token_ids"] = list(turn.ids)
            answer["prompt_token_ids"] = list(turn.prompt_ids)
        return answer


@contextmanager
def token_server(
    speak: Speak, *, tokenizer: ChatTokenizer | None = None, parses_tools: bool = True
) -> Iterator[TokenServer]:
    """Run a token server on the loopback interface, in its own thread.

    Args:
        speak: maps the prompt's text to the answer's text.
        tokenizer: the model's tokenizer; None means :class:`ByteTokenizer`.
        parses_tools: whether chat completions have ``tool_calls``; else calls stay in the text.
    """
    server = TokenServer(speak, tokenizer=tokenizer, parses_tools=parses_tools)
    with scripted_upstream(server.answer) as upstream:
        server.url = upstream.url
        yield server


def in_turn(*texts: str) -> Speak:
    """Return a function that answers with one text after the other, then always with ``done``."""
    left = iter(texts)
    return lambda _: next(left, "done")


def emitted(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Return the unmasked ids of all segments in order."""
    return tuple(token for s in segments for token, mask in zip(s.ids, s.mask, strict=True) if mask)


def _usage(turn: Emitted) -> dict[str, int]:
    return {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(turn.ids)}
