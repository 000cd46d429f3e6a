"""Normalise and validate the tool calls of an assistant message.

Hermes models and others write calls into their text, and not every server parses them:
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from hyperruntime.json_values import json_object

Message = Mapping[str, Any]
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_SHOWN = 200
_LEGACY = "function_call"  # one call, which OpenAI's format had before tools
_CALLS = ("tool_calls", _LEGACY)
OPEN = "<tool_call>"
CLOSE = "</tool_call>"
UNKNOWN = "unknown"
_NAME = re.compile(r'"name"\s*:\s*"([A-Za-z0-9_.-]{1,64})"')
# ``name`` (``unknown`` if it cannot be parsed), and ``arguments`` as JSON text (the whole call if
# they cannot).
WrittenCall = dict[str, str]
_DECODER = json.JSONDecoder(strict=False)  # models write real newlines into strings


@attrs.frozen(kw_only=True)
class ToolCall:
    """A tool call of an assistant message.

    Attributes:
        id: id of the call; the tool message refers to it.
        name: name of the tool.
        arguments: arguments by name; empty if they cannot be parsed.
        problem: the error in the call as one sentence, or "" if it is valid.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    problem: str = ""


def normalized_message(message: Message, turn: int) -> dict[str, Any]:
    """Return an assistant message with all calls in ``tool_calls``, each with a unique id.

    Calls in the text are moved out of it, and the legacy ``function_call`` becomes a call. The text
    of arguments does not change, even if it is not valid JSON. The function is idempotent.

    Args:
        message: the message as the server returned it.
        turn: number of the turn, from 1; missing ids are built from it.
    """
    normalized = {
        name: value for name, value in message.items() if value is not None and name not in _CALLS
    }
    normalized["role"] = "assistant"
    normalized["content"] = message.get("content") or ""
    given = message.get("tool_calls")
    calls = [shaped_call(call) for call in given] if isinstance(given, list) else []
    if not calls and message.get(_LEGACY):
        calls = [shaped_call({"function": message[_LEGACY]})]
    if not calls and isinstance(normalized["content"], str):
        normalized["content"], written = parse_hermes(normalized["content"])
        calls = [shaped_call({"function": call}) for call in written]
    used: set[str] = set()
    for number, call in enumerate(calls):
        if not call["id"] or call["id"] in used:
            call["id"] = f"call_{turn}_{number}"
        used.add(call["id"])
    if calls:
        normalized["tool_calls"] = calls
    return normalized


def tool_calls(message: Message, tools: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Return the calls of a normalized message, checked against the tools' schemas.

    Args:
        message: the result of :func:`normalized_message`.
        tools: tool schemas in OpenAI's form.
    """
    schemas = {
        schema["function"]["name"]: schema["function"].get("parameters", {}) for schema in tools
    }
    return tuple(_checked(call, schemas) for call in message.get("tool_calls", ()))


def sendable(messages: Iterable[Message]) -> list[Message]:
    """Return a conversation that servers accept: arguments that are not a JSON object are wrapped
    in one.
    """
    return [with_calls(message, _wrapped) for message in messages]


def with_calls(message: Message, change: Callable[[Message], Message]) -> Message:
    """Return a message with each of its tool calls changed."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [change(call) for call in calls]} if calls else message


def shaped_call(call: Any) -> dict[str, Any]:  # noqa: ANN401 - a server may send anything
    """Return a call in OpenAI's form; invalid parts get default values."""
    call = call if isinstance(call, dict) else {}
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    name = function.get("name")
    arguments = function.get("arguments")
    identity = call.get("id")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return {
        "id": identity if isinstance(identity, str) else "",
        "type": "function",
        "function": {
            "name": name if isinstance(name, str) and name else UNKNOWN,
            "arguments": arguments,
        },
    }


def _checked(call: Message, schemas: Mapping[str, Any]) -> ToolCall:
    name = call["function"]["name"]
    text = call["function"]["arguments"]
    made = ToolCall(id=call["id"], name=name)
    try:
        arguments = json.loads(text, strict=False) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        return attrs.evolve(
            made,
            problem=f"the call of {name!r} is not valid JSON ({_short(error)}); write it again",
        )
    if name == UNKNOWN and name not in schemas:
        return attrs.evolve(
            made, problem='the call has no tool name; write {"name": ..., "arguments": {...}}'
        )
    if name not in schemas:
        known = ", ".join(schemas) or "none"
        return attrs.evolve(made, problem=f"unknown tool {_short(name)!r}; the tools are: {known}")
    if not isinstance(arguments, dict):
        return attrs.evolve(made, problem=f"the arguments of {name!r} must be a JSON object")
    return attrs.evolve(
        made, arguments=arguments, problem=_argument_problem(name, arguments, schemas[name])
    )


def _argument_problem(name: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Check arguments against the required names and simple types of a schema; return the problem,
    or "".
    """
    if missing := [key for key in schema.get("required", ()) if key not in arguments]:
        return f"{name!r} needs the argument {missing[0]!r}"
    properties = schema.get("properties", {})
    for key, value in arguments.items():
        kind = properties.get(key, {}).get("type")
        kinds = [kind] if isinstance(kind, str) else kind or []
        if kinds and not any(_is_kind(value, one) for one in kinds):
            return f"the argument {key!r} of {name!r} must be of type {' or '.join(kinds)}"
    return ""


def _is_kind(value: Any, kind: str) -> bool:  # noqa: ANN401 - any JSON value
    if kind not in _KINDS:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float) and kind == "integer":
        return value.is_integer()
    return isinstance(value, _KINDS[kind])


def _wrapped(call: Message) -> Message:
    function = call["function"]
    if json_object(function["arguments"]) is not None:
        return call
    return {
        **call,
        "function": {**function, "arguments": json.dumps({"unparsed": function["arguments"]})},
    }


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def parse_hermes(text: str) -> tuple[str, tuple[WrittenCall, ...]]:
    """Return the text without the calls, and the calls in order; never raises.

    An unclosed ``<tool_call>`` is a call too, unless nothing follows it. A ``</tool_call>`` inside
    a JSON string does not end the call.
    """
    if OPEN not in text:
        return text, ()
    around: list[str] = []
    calls: list[WrittenCall] = []
    position = 0
    while (start := text.find(OPEN, position)) >= 0:
        around.append(text[position:start])
        call, position = _take(text, start + len(OPEN))
        if call is not None:
            calls.append(call)
    around.append(text[position:])
    return "".join(around).strip() if calls else text, tuple(calls)


def _take(text: str, start: int) -> tuple[WrittenCall | None, int]:
    """Return the call after an opening tag, and the position after the call."""
    begin = len(text) - len(text[start:].lstrip())
    try:
        value, after = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return _unreadable(text, start)
    end, following = _end(text, after)
    if text[after:end].strip() or not _is_call(value):
        return _unreadable(text, start)
    arguments = value.get("arguments", value.get("parameters", {}))
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"name": value["name"], "arguments": written}, following


def _end(text: str, position: int) -> tuple[int, int]:
    """Return the end of a call and the position after its closing tag; an unclosed call ends at the
    next call.
    """
    close = text.find(CLOSE, position)
    opening = text.find(OPEN, position)
    if close >= 0 and not 0 <= opening < close:
        return close, close + len(CLOSE)
    end = opening if opening >= 0 else len(text)
    return end, end


def _is_call(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and bool(value["name"])


def _unreadable(text: str, start: int) -> tuple[WrittenCall | None, int]:
    end, following = _end(text, start)
    body = text[start:end].strip()
    if not body:
        return None, following
    named = _NAME.search(body)
    return {"name": named[1] if named else UNKNOWN, "arguments": body}, following
