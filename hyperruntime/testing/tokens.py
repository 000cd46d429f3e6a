"""A tokenizer for tests: each byte is a token, and so is each of two marks around a message. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hyperruntime.rollout.agent.hermes import render_hermes

START, END = "<|im_start|>", "<|im_end|>"
_MARKS = {START: 256, END: 257}
_TEXT_OF = {number: mark.encode() for mark, number in _MARKS.items()}
_SPLIT = re.compile("|".join(re.escape(mark) for mark in _MARKS))


class ByteTokenizer:
    """Messages between marks, as Qwen's models have them; tools are listed in front.

    Attributes:
        eos: the mark that ends a turn.
        eos_id: its token.
    """

    eos = END
    eos_id = _MARKS[END]

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, prompt: bool) -> str:
        """Return a conversation as text."""
        head = f"{START}system\n# Tools\n{json.dumps(list(tools))}{END}\n" if tools else ""
        told = "".join(f"{START}{message['role']}\n{_content(message)}{END}\n" for message in messages)
        return head + told + (f"{START}assistant\n" if prompt else "")

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens."""
        ids: list[int] = []
        position = 0
        for mark in _SPLIT.finditer(text):
            ids += text[position : mark.start()].encode(errors="replace")
            ids.append(_MARKS[mark.group()])
            position = mark.end()
        return ids + list(text[position:].encode(errors="replace"))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        return b"".join(_TEXT_OF.get(token) or bytes((token,)) for token in ids).decode(errors="replace")


def _content(message: Mapping[str, Any]) -> str:
    calls = [
        render_hermes(c["function"]["name"], _parsed(c["function"]["arguments"])) for c in message.get("tool_calls", ())
    ]
    return "\n".join([text for text in (message.get("content"),) if text] + calls)


def _parsed(arguments: Any) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(arguments, strict=False) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
