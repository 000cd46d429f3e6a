"""Parse and render tool calls in a model's text: ``<tool_call>{"name": ..., "arguments":
{...}}</tool_call>``.

Hermes models and others write tool calls in this form, and not every server parses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
UNKNOWN = "unknown"
_NAME = re.compile(r'"name"\s*:\s*"([A-Za-z0-9_.-]{1,64})"')
# ``name`` (``unknown`` if it cannot be parsed), and ``arguments`` as JSON text (the whole call if
# they cannot).
WrittenCall = dict[str, str]
_DECODER = json.JSONDecoder(strict=False)  # models write real newlines into strings


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


def render_hermes(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call in the form that a model writes."""
    return (
        f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"
    )


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
