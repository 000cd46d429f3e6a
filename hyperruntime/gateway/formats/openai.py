"""OpenAI's format, which most model servers have: chats, completions, embeddings, responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hyperruntime.gateway.formats.record import Endpoint, ErrorInside, Fault, WireFormat
from hyperruntime.gateway.formats.turn_end import TurnEnd, broke_off, turn_end

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
EMBEDDINGS_PATH = "/v1/embeddings"
RESPONSES_PATH = "/v1/responses"
_SHOWN = 300
# A message with one of these says something without a content.
_SPOKEN = (
    "tool_calls",
    "function_call",
    "refusal",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "audio",
)


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"type": kind, "message": message, "code": kind, "param": None}}


def _choices(body: Mapping[str, Any], check: Callable[[Mapping[str, Any]], str]) -> Iterator[Fault]:
    """Yield the faults of an answer with choices.

    Args:
        body: the answer.
        check: returns the fault of the content of a choice as a clause, or "".
    """
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        yield "the answer has no choices"
        return
    for choice in choices:
        if not isinstance(choice, dict):
            yield f"a choice is not an object: {str(choice)[:_SHOWN]}"
            continue
        if error := choice.get("error"):
            yield ErrorInside(error)
        yield from broke_off(choice.get("finish_reason"))
        if why := check(choice):
            yield why


def _chat_content(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    if not isinstance(message, dict):
        return "a choice has no message"
    cut = turn_end(choice.get("finish_reason")) in (TurnEnd.CUT, TurnEnd.FULL, TurnEnd.FILTERED)
    silent = message.get("content") is None and not any(message.get(name) for name in _SPOKEN)
    return "a message has neither content nor tool calls" if silent and not cut else ""


def _completion_content(choice: Mapping[str, Any]) -> str:
    return "" if isinstance(choice.get("text"), str) else "a choice has no text"


def _embeddings(body: Mapping[str, Any]) -> Iterator[Fault]:
    if not isinstance(body.get("data"), list):
        yield "the answer has no embeddings"


def _response(body: Mapping[str, Any]) -> Iterator[Fault]:
    status = body.get("status", "completed")
    if status in ("failed", "cancelled"):
        yield from broke_off(status)
    if not isinstance(body.get("output"), list) or (status == "completed" and not body["output"]):
        yield "the response has no output"


def _choice_reasons(event: Mapping[str, Any]) -> Iterator[object]:
    choices = event.get("choices")
    for each in choices if isinstance(choices, list) else ():
        if isinstance(each, dict):
            yield each.get("finish_reason")


def _response_reasons(event: Mapping[str, Any]) -> Iterator[object]:
    kind = event.get("type")
    if isinstance(kind, str):
        yield _RESPONSE_ENDS.get(kind)


_RESPONSE_ENDS = {
    "response.completed": "stop",
    "response.incomplete": "length",
    "response.failed": "error",
}
_NOT_COUNTED = "the gateway could not count the answer"

OPENAI = WireFormat(
    name="openai",
    endpoints=(
        Endpoint(
            path=CHAT_PATH,
            faults=lambda body: _choices(body, _chat_content),
            reasons=_choice_reasons,
            asks_usage=True,
            asks_tokens={"logprobs": True},
        ),
        Endpoint(
            path=COMPLETIONS_PATH,
            faults=lambda body: _choices(body, _completion_content),
            reasons=_choice_reasons,
            asks_usage=True,
            asks_tokens={"logprobs": 0},
        ),
        Endpoint(path=EMBEDDINGS_PATH, faults=_embeddings),
        Endpoint(
            path=RESPONSES_PATH,
            faults=_response,
            reasons=_response_reasons,
            events_hold="response",
            refused={"background": _NOT_COUNTED},
            error_is_named=True,
            error_is_flat=True,
        ),
    ),
    error=_error,
    usage_at=(("usage",), ("response", "usage")),
)
