"""Recognise the errors by which model servers say that a conversation is longer than the model's
context. Pure.

The server's types, codes and numbers count first. The words of its message count second: most
servers have no type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hyperruntime.json_values import is_integer

_CODE_NAMES = ("code", "type", "status", "error_type", "err_type", "error_code")
_TEXT_NAMES = ("message", "msg", "error", "detail", "error_message", "reason", "raw")
_DEPTH = 4
_SEARCHED = 1000  # characters of a message: a server may quote the conversation after its own words
# Types and codes of OpenAI, Groq, Together, llama.cpp, LiteLLM, Z.ai, Anthropic; only their letters
# are compared.
_CODES = re.compile(
    r"context(?:length|window|size|limit)?(?:is)?exceed|exceed(?:ed|s)?(?:the)?context|contextoverflow"
    r"|prompttoolong|inputtoolong|requesttoolarge|stringabovemaxlength|tokenlimitexceeded"
)
_CONTEXT = re.compile(
    r"context[\s_-]*(?:length|window|size|limit)|max_model_len|max_seq_len|session_len|kv size"
    r"|maximum (?:model|sequence|prompt|input) length",
    re.IGNORECASE,
)
_OVER = re.compile(
    r"exceed|(?:long|larg|great)er than|too (?:long|large|big|many)|maximum|reduce|overflow|(?:of|is) only|is full",
    re.IGNORECASE,
)
_PHRASES = re.compile(
    r"context shift is disabled"
    r"|(?:prompt|input|conversation) (?:is )?too (?:long|large|big)\b(?! to process)"
    r"|inputs?`? (?:tokens? \+|must have less than \d)"
    r"|(?:input|prompt|requested|request)[ _](?:tokens?|length|token (?:count|length))\b.{0,80}?"
    r"(?:exceed|(?:long|larg|great)er than|only supports)"
    r"|reduce (?:the length of )?(?:the |your )?(?:messages|prompt|input)"
    r"|exceed\w* (?:the )?(?:model(?:'s)? )?(?:token limit|max(?:imum)? (?:allowed )?(?:input )?length|max length)"
    r"|exceed\w* the maximum number of (?:input )?tokens"
    r"|configured context size is \d|range of input length should be|too many (?:input )?tokens",
    re.IGNORECASE | re.DOTALL,
)
# OpenRouter's 402 says "Prompt tokens limit exceeded"
_OF_ACCOUNT = frozenset({"401", "402", "403"})
_RATE = re.compile(
    r"rate.?limit|per (?:minute|hour|day)|\btpm\b|please wait|throttl|quota", re.IGNORECASE
)


def is_too_long(status: int, error: object) -> bool:
    """Return whether an error says that the conversation is too long for the model.

    Args:
        status: the HTTP status, or the status that the error in a body means. Servers use any 4xx
            but those of the key and the account, and 500.
        error: the parsed body, the error in it, or a text.
    """
    codes = [status, *(each.get(name) for each in _objects(error) for name in ("code", "status"))]
    if any(str(code) in _OF_ACCOUNT for code in codes) or not (
        400 <= status < 500 or status == 500
    ):
        return False
    if any(
        is_integer(each.get("n_prompt_tokens")) and is_integer(each.get("n_ctx"))
        for each in _objects(error)
    ):
        return True
    return any(map(_is_code, _values(error, _CODE_NAMES))) or any(map(_is_said, messages_of(error)))


def messages_of(error: object) -> list[str]:
    """Return the sentences of an error for people, in order."""
    return [error] if isinstance(error, str) else list(_values(error, _TEXT_NAMES))


def _is_code(code: str) -> bool:
    return _CODES.search(re.sub(r"[^a-z]", "", code.lower())) is not None


def _is_said(message: str) -> bool:
    message = message[:_SEARCHED]
    if _RATE.search(message):
        return False
    if _PHRASES.search(message) or any(map(_is_code, re.findall(r"[A-Za-z_]{12,60}", message))):
        return True
    return _CONTEXT.search(message) is not None and _OVER.search(message) is not None


def _objects(value: Any, depth: int = _DEPTH) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401 - JSON from a server
    """Yield the objects in a JSON value, the outer ones first."""
    if isinstance(value, Mapping):
        yield value
    inner = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    )
    for each in inner if depth else ():
        if isinstance(each, Mapping | list):
            yield from _objects(each, depth - 1)


def _values(value: object, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts of the members that have these names."""
    for each in _objects(value):
        for name in names:
            if isinstance(text := each.get(name), str):
                yield text
