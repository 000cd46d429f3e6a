"""Tool calls that a model writes into its text: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

That is the form of the Hermes models, and of others whose servers do not parse it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

OPEN, CLOSE = "<tool_call>", "</tool_call>"
UNKNOWN = "unknown"
_NAME = re.compile(r'"name"\s*:\s*"([A-Za-z0-9_.-]{1,64})"')
_DECODER = json.JSONDecoder(strict=False)  # models write real newlines into strings


@attrs.frozen(kw_only=True)
class WrittenCall:
    """A call as it stands in the text.

    Attributes:
        name: of the tool; ``unknown`` where none can be read.
        arguments: JSON text of its arguments; where the call cannot be read, all that was written.
    """

    name: str
    arguments: str


def parse_hermes(text: str) -> tuple[str, tuple[WrittenCall, ...]]:
    """Return the text around the calls, and the calls in their order; never raises.

    A last tag that is not closed is a call too, if anything follows it. A ``</tool_call>`` inside a JSON string does
    not end the call.
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


def render_hermes(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as a model writes it."""
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"


def _take(text: str, start: int) -> tuple[WrittenCall | None, int]:
    """Return the call that begins after a tag, and where the text goes on."""
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        value, after = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return _unreadable(text, start)
    end, following = _end(text, after)
    if text[after:end].strip() or not _is_call(value):
        return _unreadable(text, start)
    arguments = value.get("arguments", value.get("parameters", {}))
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return WrittenCall(name=value["name"], arguments=written), following


def _end(text: str, position: int) -> tuple[int, int]:
    """Return where a call ends and where the text goes on: after its closing tag, else at the next call or nowhere."""
    close, opening = text.find(CLOSE, position), text.find(OPEN, position)
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
    return WrittenCall(name=named.group(1) if named else UNKNOWN, arguments=body), following
