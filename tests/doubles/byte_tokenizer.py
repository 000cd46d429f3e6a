"""A tokenizer for tests: each byte is a token, and so are the two marks around a message."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hyperruntime.rollout.agent.tool_calls import CLOSE, OPEN

START, END = "<|im_start|>", "<|im_end|>"
_MARKS = {START: 256, END: 257}
_TEXT_OF = {number: mark.encode() for mark, number in _MARKS.items()}
_SPLIT = re.compile("|".join(re.escape(mark) for mark in _MARKS))


class ByteTokenizer:
    """Renders each message between two marks, as for Qwen's models; a first message lists the
    tools.

    Attributes:
        eos: the mark that ends a turn.
        eos_id: the token of that mark.
    """

    eos = END
    eos_id = _MARKS[END]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        prompt: bool,
    ) -> str:
        """Return a conversation as text.

        Args:
            messages: in OpenAI's form.
            tools: schemas of the tools; none lists no tools.
            prompt: whether to append the start of an assistant message.
        """
        head = f"{START}system\n# Tools\n{json.dumps(list(tools))}{END}\n" if tools else ""
        told = "".join(
            f"{START}{message['role']}\n{_content(message)}{END}\n" for message in messages
        )
        return head + told + (f"{START}assistant\n" if prompt else "")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ids: list[int] = []
        position = 0
        for mark in _SPLIT.finditer(text):
            ids += text[position : mark.start()].encode(errors="replace")
            ids.append(_MARKS[mark.group()])
            position = mark.end()
        return ids + list(text[position:].encode(errors="replace"))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        return b"".join(_TEXT_OF.get(token) or bytes((token,)) for token in ids).decode(
            errors="replace"
        )


def _content(message: Mapping[str, Any]) -> str:
    calls = [
        render_hermes(c["function"]["name"], _parsed(c["function"]["arguments"]))
        for c in message.get("tool_calls", ())
    ]
    return "\n".join([text for text in (message.get("content"),) if text] + calls)


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments, strict=False) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def render_hermes(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call in the form that a model writes."""
    return (
        f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"
    )
