"""Look through an upstream's answers before they go on: keys, what was used, tokens. Pure.

It runs in a parse worker where an answer is large, so all that it takes and returns can be pickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from hyperruntime.gateway.answer.sse import data_lines, event_data
from hyperruntime.gateway.answer.tokens import GeneratedTokens
from hyperruntime.gateway.answer.usage import usage_of
from hyperruntime.gateway.log.budget import Tokens
from hyperruntime.gateway.log.redact import MARK, Redactor
from hyperruntime.gateway.request.json_size import count_values
from hyperruntime.gateway.request.parse import RequestRefusedError

_MOST_VALUES = 4_000_000  # of an answer that is read; a larger one is numbers, and its usage is estimated
_SPELLED_LENGTH = 16  # characters that a spelling takes for one of the key
_BETWEEN = re.compile(r"[^A-Za-z0-9\\%&#;{}=]+")  # what no spelling has, as far as it is searched
_NAME = re.compile(rb"event: ?([A-Za-z0-9_.-]{1,64})[\r\n]*")
_NAMES = frozenset({"message", "error", "ping", "done"})
Path = tuple[str | int, ...]


@attrs.frozen(kw_only=True)
class Screened:
    """An answer that may go on.

    Attributes:
        body: without keys; None where nothing was taken out of it.
        used: what it says it used, or None.
        generated: its tokens, when asked for.
    """

    body: bytes | None
    used: Tokens | None
    generated: dict[str, Any] | None


def screen(data: bytes, redactor: Redactor, *, is_json: bool, tokens: bool) -> Screened:
    """Return what of an answer goes on, and what it says.

    Args:
        data: the whole body. redactor: knows the keys. is_json: whether it must be JSON still, when a key is cut out.
        tokens: whether generated tokens are wanted.

    Raises:
        RequestRefusedError: it is not text, or holds a key that cannot be cut out.
    """
    check_text(data)
    cleaned = redactor.clean(data)
    message = _parse(cleaned)
    if cleaned != data and (cleaned == MARK.encode() or (message is None and is_json)):
        raise key_in_answer()
    if redactor.longest and holds_joined(texts_of(message), redactor, alone=True):
        raise key_in_answer()
    record = GeneratedTokens() if tokens else None
    if record is not None:
        record.see(message)
    return Screened(
        body=None if cleaned == data else cleaned,
        used=usage_of(message),
        generated=None if record is None else record.to_json(),
    )


def _parse(data: bytes) -> Any | None:  # noqa: ANN401 - JSON from a server
    if count_values(data) > _MOST_VALUES:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


@attrs.frozen(kw_only=True)
class Piece:
    """A text of an event, at both of its ends.

    Attributes:
        path: its place: names and each ``index`` on the way.
        head: its first characters, as many as the longest spelling of a key has; one blank for all that is in none.
        tail: its last ones.
    """

    path: Path
    head: str
    tail: str


@attrs.frozen(kw_only=True)
class Event:
    """An event of a stream, looked through.

    Attributes:
        cleaned: its bytes without keys.
        pieces: its texts, for :class:`StreamGuard`.
        used: what it says was used, or None.
        usage_alone: whether it says nothing else, as the last event of OpenAI's format.
        message: its data, where tokens are wanted.
    """

    cleaned: bytes
    pieces: tuple[Piece, ...]
    used: Tokens | None
    usage_alone: bool
    message: Any = None


def screen_event(event: bytes, redactor: Redactor, *, tokens: bool = False) -> Event:
    """Look through one event; in a parse worker where it is large.

    Raises:
        RequestRefusedError: it is not UTF-8, or a key cannot be cut out of it.
    """
    cleaned = _cleaned(event, redactor)
    message = event_data(cleaned)
    found = texts_of(message) if isinstance(message, dict | list) else [(("text",), data_lines(cleaned).decode())]
    reach = reach_of(redactor)
    if reach and holds_joined(found, redactor, alone=len(cleaned) > reach):  # the guard looks through the others
        raise key_in_answer()
    return Event(
        cleaned=cleaned,
        pieces=tuple(_piece(path, text, reach) for path, text in found if text and reach),
        used=usage_of(message),
        usage_alone=isinstance(message, dict) and message.get("choices") == [] and usage_of(message) is not None,
        message=message if tokens else None,
    )


def _piece(path: Path, text: str, reach: int) -> Piece:
    text = _BETWEEN.sub(" ", text)
    return Piece(path=path, head=text[:reach], tail=text[-reach:])


def reach_of(redactor: Redactor) -> int:
    """Return how many characters the longest spelling of a key takes."""
    return redactor.longest * _SPELLED_LENGTH


def _cleaned(event: bytes, redactor: Redactor) -> bytes:
    """Return an event without keys, and without fields that no client reads; a comment loses its text."""
    check_text(event)
    lines = event.splitlines(keepends=True)
    if not all(line.startswith(b"data:") or not line.strip() for line in lines):
        message = event_data(event)
        kind = message.get("type") if isinstance(message, dict) else None
        event = b"".join(_known_field(line, kind) for line in lines)
    cleaned = redactor.clean(event)
    if cleaned != event and (cleaned == MARK.encode() or event_data(cleaned) is None is not event_data(event)):
        raise key_in_answer()
    return cleaned


def _known_field(line: bytes, kind: object) -> bytes:
    """Return a line that clients read; a name only if it is known, or what the data calls itself."""
    if line.startswith(b":"):
        return b":\n"
    name = _NAME.fullmatch(line)
    known = name is not None and name[1].decode() in (kind, *_NAMES)
    return line if known or line.startswith(b"data:") or not line.strip() else b""


def check_text(data: bytes) -> None:
    """Do nothing where bytes are text.

    Raises:
        RequestRefusedError: they are not: nobody can see what is in them.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        raise RequestRefusedError(
            502, "answer_not_text", "the upstream's answer is not UTF-8; it was not passed on"
        ) from None


def key_in_answer() -> RequestRefusedError:
    """Return the refusal of an answer whose key cannot be cut out."""
    return RequestRefusedError(502, "key_in_answer", "the upstream's answer held its API key; it was not passed on")


def holds_joined(texts: Iterable[tuple[Path, str]], redactor: Redactor, *, alone: bool) -> bool:
    """Tell whether several texts of one answer hold a key once they are joined, as clients do; or one ``alone``."""
    joined: dict[Path, list[str]] = {}
    for path, text in texts:
        for place in places(path):
            joined.setdefault(place, []).append(text)
    searched = (parts for parts in joined.values() if alone or len(parts) > 1)
    return any(redactor.holds("".join(parts).encode(errors="replace")) for parts in searched)


def places(path: Path) -> set[Path]:
    """Return where a text is joined to others: to those with its indexes, and to those with any."""
    return {path, tuple(part for part in path if not isinstance(part, int))}


def texts_of(data: Any) -> list[tuple[Path, str]]:  # noqa: ANN401 - JSON from a server
    """Return each text in a JSON value with its place: names and each ``index`` on the way, no positions in lists.

    A list of small numbers counts as the text of these bytes: some servers give a token's bytes so.

    Raises:
        RequestRefusedError: it is nested too deep.
    """
    try:
        return list(_walk(data, ()))
    except RecursionError:
        raise RequestRefusedError(502, "answer_too_large", "the upstream's answer is nested too deep") from None


def _walk(data: Any, path: Path) -> Iterator[tuple[Path, str]]:  # noqa: ANN401 - JSON from a server
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, dict):
        index = data.get("index")
        here = (*path, index) if isinstance(index, int) else path
        for name, value in data.items():
            if isinstance(value, str | dict | list):
                yield from _walk(value, (*here, name))
    elif isinstance(data, list):
        if data and all(isinstance(item, int) and 0 <= item < 256 for item in data):
            yield path, bytes(data).decode("latin-1")
        for item in data:
            if isinstance(item, str | dict | list):
                yield from _walk(item, path)
