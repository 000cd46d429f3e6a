"""Rows of a batch: prompts from a JSONL file, each with the image and the directory it is to be worked on in."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import SpecError

KEYS = ("prompt", "messages", "id", "image", "docker_image", "cwd")
_ROLES = ("system", "user", "assistant", "tool")
_ID_CHARACTERS = 200


@attrs.frozen(kw_only=True)
class PromptRow:
    """One conversation to be had.

    Attributes:
        id: the row's own, or made of its content, so that it stays the same when the file grows.
        digest: of the row's content.
        messages: the opening, in OpenAI's form.
        image: where its commands run, or None for the batch's own.
        cwd: where they start, an absolute path in the image; "" is a workspace of its own.
        data: the row as it was written, unknown keys included.
    """

    id: str
    digest: str
    messages: Sequence[Mapping[str, Any]]
    image: str | None = None
    cwd: str = ""
    data: Mapping[str, Any] = attrs.field(factory=dict)


def read_rows(path: Path) -> tuple[PromptRow, ...]:
    """Return the rows of a JSONL file; empty lines are none.

    Raises:
        SpecError: a line is no row, or two rows have one id (names the line), or there are none.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SpecError("PROMPTS", str(path), f"a JSONL file that can be read: {error.strerror}") from error
    rows: list[PromptRow] = []
    seen: dict[str, int] = {}
    twins: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = parse_row(_json(line, number), f"line {number}", twins)
        if row.id in seen:
            raise SpecError(f"line {number}: id", row.id, f"one that no other row has; line {seen[row.id]} has it")
        seen[row.id] = number
        rows.append(row)
    if not rows:
        raise SpecError("PROMPTS", str(path), "a JSONL file with rows; this one has none")
    return tuple(rows)


def parse_row(value: Any, where: str, twins: Counter[str] | None = None) -> PromptRow:  # noqa: ANN401 - checked here
    """Return the row that a JSON value is.

    Args:
        where: how errors name it.
        twins: how often each content was met, so that rows that are alike get ids that are not; changed here.

    Raises:
        SpecError: it is none.
    """
    if not isinstance(value, dict):
        raise SpecError(where, value, "a JSON object with 'prompt' or 'messages'")
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
    twins = Counter() if twins is None else twins
    twins[digest] += 1
    made = digest if twins[digest] == 1 else f"{digest}-{twins[digest]}"
    return PromptRow(
        id=_id(value.get("id"), where) or made,
        digest=digest,
        messages=_messages(value, where),
        image=_image(value, where),
        cwd=_cwd(value, where),
        data=value,
    )


def _json(line: bytes, number: int) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        shown = line.decode(errors="replace")
        raise SpecError(f"line {number}", shown, f"one JSON object a line: {error}") from error


def _id(value: Any, where: str) -> str:  # noqa: ANN401 - checked here
    if value is None:
        return ""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not text.strip() or len(text) > _ID_CHARACTERS or not text.isprintable():
        raise SpecError(f"{where}: id", value, f"a number or printable text of at most {_ID_CHARACTERS} characters")
    return text


def _text(value: Mapping[str, Any], key: str, where: str) -> str | None:
    found = value.get(key)
    if found is not None and (not isinstance(found, str) or not found or "\0" in found):
        raise SpecError(f"{where}: {key}", found, "text that is not empty, without NUL")
    return found


def _cwd(value: Mapping[str, Any], where: str) -> str:
    cwd = _text(value, "cwd", where) or ""
    if cwd and not cwd.startswith("/"):
        raise SpecError(f"{where}: cwd", cwd, "an absolute path inside the image")
    return cwd


def _image(value: Mapping[str, Any], where: str) -> str | None:
    named = {key: text for key in ("image", "docker_image") if (text := _text(value, key, where)) is not None}
    if len(set(named.values())) > 1:
        raise SpecError(f"{where}: image", named["image"], f"the same as docker_image, {named['docker_image']!r}")
    return next(iter(named.values()), None)


def _messages(value: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], ...]:
    prompt, messages = value.get("prompt"), value.get("messages")
    if (prompt is None) == (messages is None):
        raise SpecError(where, sorted(value), "an object with one of 'prompt' and 'messages'")
    if isinstance(prompt, str) and prompt:
        return ({"role": "user", "content": prompt},)
    if prompt is not None:
        raise SpecError(f"{where}: prompt", prompt, "text that is not empty")
    if not isinstance(messages, list) or not messages:
        raise SpecError(f"{where}: messages", messages, "a list of messages that is not empty")
    return tuple(_message(message, f"{where}: messages[{index}]") for index, message in enumerate(messages))


def _message(value: Any, where: str) -> Mapping[str, Any]:  # noqa: ANN401 - checked here
    if not isinstance(value, dict) or value.get("role") not in _ROLES:
        raise SpecError(where, value, f"an object whose role is one of {', '.join(_ROLES)}")
    if not isinstance(value.get("content"), str | list) and not value.get("tool_calls"):
        raise SpecError(where, value, "a message with content")
    return value


def unknown_keys(rows: Sequence[PromptRow]) -> Iterator[str]:
    """Yield the keys of rows that mean nothing here, each once; they are handed through."""
    yield from dict.fromkeys(key for row in rows for key in row.data if key not in KEYS)
