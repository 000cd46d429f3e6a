"""Screen an upstream's answers for keys, usage and tokens before the client gets them; also a key
that is split over several events of a stream. Pure.

Large answers are screened in a parse worker, so all arguments and results can be pickled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from hyperruntime.gateway.answer.judgement import (
    NO_SIGN,
    USABLE,
    EventSign,
    Judgement,
    judge,
    judge_event,
    read_body,
)
from hyperruntime.gateway.answer.sse import data_lines, event_data
from hyperruntime.gateway.answer.usage import GeneratedTokens, usage_of
from hyperruntime.gateway.log.budget import Tokens
from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.json_values import count_values
from hyperruntime.secrets.redact import MARK, Redactor

# an answer with more JSON values is not parsed, and its usage is estimated
_MOST_VALUES = 4_000_000
_SHOWN = 300
_SPELLED_LENGTH = 16  # the most characters that a spelling uses for one character of the key
_BETWEEN = re.compile(r"[^A-Za-z0-9\\%&#;{}=]+")  # characters that the search for keys ignores
_NAME = re.compile(rb"event: ?([A-Za-z0-9_.-]{1,64})[\r\n]*")
_NAMES = frozenset({"message", "error", "ping", "done"})
# the last three in OpenAI's responses
_INDEXES = ("index", "output_index", "content_index", "summary_index")
_MOST_EVENTS = 4096
_MOST_BYTES = 256 * 1024
_MOST_CHANNELS = 2048
# Clients do not join the values of these fields.
_SET = frozenset(
    {"id", "item_id", "role", "type", "name", "object", "model", "finish_reason", "stop_reason"}
)
Path = tuple[str | int, ...]


@attrs.frozen(kw_only=True)
class Screened:
    """An answer that is safe to send to the client.

    Attributes:
        body: the body without keys; None if the original body holds no key.
        used: the usage that the answer reports, or None.
        generated: the generated tokens as JSON; None if they were not requested.
        judgement: whether the answer is usable, or whose fault it is.
    """

    body: bytes | None
    used: Tokens | None
    generated: dict[str, Any] | None
    judgement: Judgement = USABLE


def screen(
    data: bytes, redactor: Redactor, *, path: str, status: int, is_json: bool, tokens: bool
) -> Screened:
    """Return an answer without keys, with its usage and its tokens.

    Args:
        data: the whole body.
        redactor: removes the keys.
        path: path of the endpoint.
        status: the HTTP status.
        is_json: whether the body must still be JSON after a key is cut out.
        tokens: whether to collect generated tokens.

    Raises:
        RequestRefusedError: the body is not UTF-8, is nested too deeply or holds a key that cannot
            be cut out.
    """
    check_text(data)
    cleaned = redactor.clean(data)
    is_parsed = count_values(cleaned) <= _MOST_VALUES
    message = read_body(cleaned) if is_parsed else None
    if cleaned != data and (cleaned == MARK.encode() or (message is None and is_json)):
        raise key_in_answer()
    if redactor.longest and holds_joined(texts_of(message), redactor, alone=True):
        raise key_in_answer()
    record = GeneratedTokens() if tokens else None
    if record is not None:
        record.see(message)
    return Screened(
        body=None if cleaned == data else cleaned,
        used=usage_of(path, message),
        generated=None if record is None else record.to_json(),
        judgement=judge(path, status, message, cleaned[:_SHOWN].decode(errors="replace"))
        if is_parsed
        else USABLE,
    )


@attrs.frozen(kw_only=True)
class Piece:
    """The head and the tail of one text in an event.

    Attributes:
        path: path of the text in the event: member names, and each index member on the way.
        head: its first characters, as many as the longest spelling of a key has. Runs of characters
            that occur in no spelling are replaced by one blank.
        tail: its last characters, in the same form.
    """

    path: Path
    head: str
    tail: str


@attrs.frozen(kw_only=True)
class Event:
    """A screened event of a stream.

    Attributes:
        cleaned: the event's bytes without keys.
        pieces: its texts, for :class:`StreamGuard`.
        used: the usage that it reports, or None.
        usage_alone: whether it reports usage and nothing else, as the last event of OpenAI's format
            does.
        sign: whether it ends the model's turn, or reports an error.
        message: its parsed data; None if tokens were not requested.
    """

    cleaned: bytes
    pieces: tuple[Piece, ...]
    used: Tokens | None
    usage_alone: bool
    sign: EventSign = NO_SIGN
    message: Any = None


def screen_event(
    event: bytes, redactor: Redactor, *, path: str = "", tokens: bool = False
) -> Event:
    """Return one event, screened.

    Args:
        event: the bytes of the event, with its empty line.
        redactor: removes the keys.
        path: path of the endpoint.
        tokens: whether to keep the parsed data, for collecting generated tokens.

    Raises:
        RequestRefusedError: the event is not UTF-8, is nested too deeply or holds a key that cannot
            be cut out.
    """
    cleaned = _cleaned(event, redactor)
    message = event_data(cleaned)
    found = (
        texts_of(message)
        if isinstance(message, dict | list)
        else [(("text",), data_lines(cleaned).decode())]
    )
    reach = reach_of(redactor)
    # the guard checks shorter ones
    if reach and holds_joined(found, redactor, alone=len(cleaned) > reach):
        raise key_in_answer()
    return Event(
        cleaned=cleaned,
        pieces=tuple(_piece(path, text, reach) for path, text in found if text and reach),
        used=usage_of(path, message),
        usage_alone=isinstance(message, dict)
        and message.get("choices") == []
        and usage_of(path, message) is not None,
        sign=judge_event(path, message),
        message=message if tokens else None,
    )


def _piece(path: Path, text: str, reach: int) -> Piece:
    text = _BETWEEN.sub(" ", text)
    return Piece(path=path, head=text[:reach], tail=text[-reach:])


def reach_of(redactor: Redactor) -> int:
    """Return the number of characters in the longest spelling of a key; 0 if no spellings are
    searched for.
    """
    return redactor.longest * _SPELLED_LENGTH


def _cleaned(event: bytes, redactor: Redactor) -> bytes:
    """Return an event without keys, without fields that no client reads, and with empty
    comments.
    """
    check_text(event)
    lines = event.splitlines(keepends=True)
    if not all(line.startswith(b"data:") or not line.strip() for line in lines):
        message = event_data(event)
        kind = message.get("type") if isinstance(message, dict) else None
        event = b"".join(_known_field(line, kind) for line in lines)
    cleaned = redactor.clean(event)
    if cleaned != event and (
        cleaned == MARK.encode() or event_data(cleaned) is None is not event_data(event)
    ):
        raise key_in_answer()
    return cleaned


def _known_field(line: bytes, kind: object) -> bytes:
    """Return the line if clients read it, else b""; an event name must be well known or equal the
    data's ``type``.
    """
    if line.startswith(b":"):
        return b":\n"
    name = _NAME.fullmatch(line)
    known = name is not None and name[1].decode() in (kind, *_NAMES)
    return line if known or line.startswith(b"data:") or not line.strip() else b""


def check_text(data: bytes) -> None:
    """Check that an answer is text, because only text can be searched for keys.

    Raises:
        RequestRefusedError: it is not UTF-8.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        raise RequestRefusedError(
            502, "answer_not_text", "the upstream's answer is not UTF-8; it was not passed on"
        ) from None


def key_in_answer() -> RequestRefusedError:
    """Return the error for an answer that holds a key that cannot be cut out."""
    return RequestRefusedError(
        502, "key_in_answer", "the upstream's answer held its API key; it was not passed on"
    )


def holds_joined(texts: Iterable[tuple[Path, str]], redactor: Redactor, *, alone: bool) -> bool:
    """Return whether the texts of one answer hold a key when they are joined as clients join them.

    Args:
        texts: path and text of each.
        redactor: detects the keys.
        alone: whether to search texts too that are joined to no other.
    """
    joined: dict[Path, list[str]] = {}
    for path, text in texts:
        for joined_path in joined_paths(path):
            joined.setdefault(joined_path, []).append(text)
    searched = (parts for parts in joined.values() if alone or len(parts) > 1)
    return any(redactor.holds("".join(parts).encode(errors="replace")) for parts in searched)


def joined_paths(path: Path) -> set[Path]:
    """Return the paths under which a text is joined to others: with its indexes, and without any
    index.
    """
    return {path, tuple(part for part in path if not isinstance(part, int))}


def texts_of(data: Any) -> list[tuple[Path, str]]:  # noqa: ANN401 - JSON from a server
    """Return each text in a JSON value with its path: member names and each index member, no
    positions in lists.

    A list of numbers below 256 counts as the text of these bytes: some servers send a token's bytes
    in this form.

    Raises:
        RequestRefusedError: the value is nested too deeply.
    """
    try:
        return list(_walk(data, ()))
    except RecursionError:
        raise RequestRefusedError(
            502, "answer_too_large", "the upstream's answer is nested too deeply"
        ) from None


def _walk(data: Any, path: Path) -> Iterator[tuple[Path, str]]:  # noqa: ANN401 - JSON from a server
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, dict):
        here = (*path, *(index for name in _INDEXES if isinstance(index := data.get(name), int)))
        for name, value in data.items():
            if isinstance(value, str | dict | list):
                yield from _walk(value, (*here, name))
    elif isinstance(data, list):
        if data and all(isinstance(item, int) and 0 <= item < 256 for item in data):
            yield path, bytes(data).decode("latin-1")
        for item in data:
            if isinstance(item, str | dict | list):
                yield from _walk(item, path)


@attrs.define
class _Channel:
    """A text that grows over events.

    Attributes:
        tail: the last characters of the joined text.
        last: the tail of the last event's text.
    """

    tail: str = ""
    last: str = ""


class StreamGuard:
    """Takes the events of one stream in order, and returns those that are safe to send.

    Clients join the texts of events (``choices[].delta.content``). The guard joins them too, field
    by field, and ends the stream when a joined text holds a key. While a joined text ends in the
    beginning of a key, in any spelling, the guard holds events back. It starts only when the
    beginning is too long to guess. Otherwise a client could let the server say one guess after the
    other, and see from the delays which guess is right.
    """

    def __init__(self, redactor: Redactor) -> None:
        """Start a stream; `redactor` detects the keys."""
        self._redactor = redactor
        self._reach = reach_of(redactor)
        self._channels: dict[Path, _Channel] = {}
        self._begun: set[Path] = set()
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, event: Event) -> list[bytes]:
        """Take an event; return the events that can be sent now.

        Raises:
            RequestRefusedError: the event completes a key that is split over several events, too
                many events are held, or the stream has too many fields; the caller must send no
                more events.
        """
        for piece in event.pieces:
            for path in joined_paths(piece.path):
                self._join(path, piece)
        self._held.append(event.cleaned)
        if not self._begun:
            return self.rest()
        self._held_bytes += len(event.cleaned)
        if len(self._held) > _MOST_EVENTS or self._held_bytes > _MOST_BYTES:
            raise key_in_answer()
        return []

    def rest(self) -> list[bytes]:
        """Return the events that are held, for the end of the stream."""
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    def _join(self, path: Path, piece: Piece) -> None:
        """Add a text to its channel, and check whether the joined text holds a key or the beginning
        of one.
        """
        if len(self._channels) >= _MOST_CHANNELS and path not in self._channels:
            raise RequestRefusedError(
                502, "answer_too_large", f"the stream has more than {_MOST_CHANNELS} fields"
            )
        channel = self._channels.setdefault(path, _Channel())
        if piece.tail == channel.last and path[-1:] and path[-1] in _SET:
            return  # the same value in each event
        channel.last = piece.tail
        joined = channel.tail + piece.head
        is_short = piece.head == piece.tail
        channel.tail = (joined if is_short else piece.tail)[-self._reach :]
        self._begun.discard(path)
        data = joined.encode(errors="replace")
        may_hold = self._redactor.may_hold(data)
        if may_hold and self._redactor.holds(data):
            raise key_in_answer()
        if (may_hold or not is_short) and self._redactor.begins(
            channel.tail.encode(errors="replace")
        ):
            self._begun.add(path)
