"""Rows of a batch: prompts from a JSONL file, each with an optional image and working directory."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.datasets.json_lines import json_lines
from hyperruntime.datasets.left_out import FAIL, LeftOut
from hyperruntime.errors import SpecError

KEYS = ("prompt", "messages", "id", "image", "docker_image", "cwd")
_ROLES = ("system", "user", "assistant", "tool")
_ID_CHARACTERS = 200


@attrs.frozen(kw_only=True)
class PromptRow:
    """One conversation to run.

    Attributes:
        id: the row's ``id``, or a digest of its content, which stays the same when the file grows.
        digest: digest of the row's content.
        messages: opening messages in OpenAI's form.
        image: image in which its commands run; None means the batch's image.
        cwd: working directory of its commands, an absolute path in the image; "" means the batch's
            own.
        data: the JSON object of the row, unknown keys included.
    """

    id: str
    digest: str
    messages: Sequence[Mapping[str, Any]] = attrs.field(hash=False)
    image: str | None = None
    cwd: str = ""
    data: Mapping[str, Any] = attrs.field(factory=dict, hash=False)


def read_rows(path: Path, left: LeftOut | None = None) -> tuple[PromptRow, ...]:
    """Return the rows of a JSONL file; empty lines are skipped.

    Args:
        path: the file.
        left: takes lines that are no valid row, or repeat an id; None: they raise an error.

    Raises:
        SpecError: the file cannot be read or has no valid rows, or a line is odd, and ``left``
            takes none.
    """
    left = left or LeftOut(FAIL)
    rows: list[PromptRow] = []
    seen: dict[str, int] = {}
    twins: Counter[str] = Counter()
    try:
        for number, _, value in json_lines(path, left, finite=True):
            with left.reading(f"line {number}"):
                row = parse_row(value, f"line {number}", twins)
                if row.id in seen:
                    allowed = f"an id must be unique; line {seen[row.id]} has the same id"
                    raise SpecError(f"line {number}: id", row.id, allowed)
                seen[row.id] = number
                rows.append(row)
    except OSError as error:
        raise SpecError(
            "PROMPTS", str(path), f"a JSONL file that can be read: {error.strerror}"
        ) from error
    left.check_any(len(rows), "PROMPTS", str(path))
    if not rows:
        raise SpecError("PROMPTS", str(path), "a JSONL file with rows; this one has none")
    return tuple(rows)


def parse_row(value: Any, where: str, twins: Counter[str]) -> PromptRow:  # noqa: ANN401 - checked here
    """Return the row of a JSON value.

    Args:
        value: the JSON value of a line.
        where: name of the line in errors.
        twins: count of rows by digest, so that identical rows get different ids; updated here.

    Raises:
        SpecError: the value is not a valid row.
    """
    if not isinstance(value, dict):
        raise SpecError(where, value, "a JSON object with 'prompt' or 'messages'")
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
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


def _id(value: Any, where: str) -> str:  # noqa: ANN401 - checked here
    if value is None:
        return ""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not text.strip() or len(text) > _ID_CHARACTERS or not text.isprintable():
        raise SpecError(
            f"{where}: id",
            value,
            f"a number or printable text of at most {_ID_CHARACTERS} characters",
        )
    return text


def _text(value: Mapping[str, Any], key: str, where: str) -> str | None:
    found = value.get(key)
    if found is not None and (not isinstance(found, str) or not found or "\0" in found):
        raise SpecError(f"{where}: {key}", found, "non-empty text without NUL")
    return found


def _cwd(value: Mapping[str, Any], where: str) -> str:
    cwd = _text(value, "cwd", where) or ""
    if cwd and not cwd.startswith("/"):
        raise SpecError(f"{where}: cwd", cwd, "an absolute path inside the image")
    return cwd


def _image(value: Mapping[str, Any], where: str) -> str | None:
    named = {
        key: text
        for key in ("image", "docker_image")
        if (text := _text(value, key, where)) is not None
    }
    if len(set(named.values())) > 1:
        raise SpecError(
            f"{where}: image",
            named["image"],
            f"the same as docker_image, {named['docker_image']!r}",
        )
    return next(iter(named.values()), None)


def _messages(value: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], ...]:
    prompt = value.get("prompt")
    messages = value.get("messages")
    if (prompt is None) == (messages is None):
        raise SpecError(where, sorted(value), "an object with one of 'prompt' and 'messages'")
    if isinstance(prompt, str) and prompt:
        return ({"role": "user", "content": prompt},)
    if prompt is not None:
        raise SpecError(f"{where}: prompt", prompt, "non-empty text")
    if not isinstance(messages, list) or not messages:
        raise SpecError(f"{where}: messages", messages, "a non-empty list of messages")
    return tuple(
        _message(message, f"{where}: messages[{index}]") for index, message in enumerate(messages)
    )


def _message(value: Any, where: str) -> Mapping[str, Any]:  # noqa: ANN401 - checked here
    if not isinstance(value, dict) or value.get("role") not in _ROLES:
        raise SpecError(where, value, f"an object whose role is one of {', '.join(_ROLES)}")
    if not isinstance(value.get("content"), str | list) and not value.get("tool_calls"):
        raise SpecError(where, value, "a message with content")
    return value


def unknown_keys(rows: Sequence[PromptRow]) -> Iterator[str]:
    """Yield each unknown key of the rows once; the batch copies them to the results unchanged."""
    yield from dict.fromkeys(key for row in rows for key in row.data if key not in KEYS)
