"""Keep keys out of streams of events, also one that is split over several events. Imports redact and screen.

Clients join the texts of events (``choices[].delta.content``). The guard joins them too, field by field, and ends the
stream when a joined text holds a key. So that nothing of such a key but its first few characters is sent before, the
guard holds events back while a text is in the middle of a long word. What it holds back depends on the length of the
key alone, never on its characters: else a client could read from the delays how much of a guess is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import attrs

from hyperruntime.gateway.redact import Redactor
from hyperruntime.gateway.request import RefusedError
from hyperruntime.gateway.screen import Event, Path, Piece, key_in_answer, reach_of

_MOST_EVENTS = 64
_MOST_BYTES = 256 * 1024
_MOST_CHANNELS = 2048
_SENT_AHEAD = 8  # characters of a word, at most a quarter of a key
_WORD = "".join(map(chr, range(0x21, 0x7F)))  # what keys and their spellings are written with; a blank ends it
_SET = frozenset({"id", "role", "type", "name", "object", "model", "finish_reason", "stop_reason"})
_JOINED = frozenset({"delta", "text", "content_block", "logprobs"})


@attrs.define
class _Channel:
    """A text that grows over events: its last characters, its length, and where its last word began."""

    tail: str = ""
    length: int = 0
    word_begins: int = 0

    def add(self, piece: Piece, reach: int) -> None:
        """Let it grow; keep so many of its last characters."""
        joined = self.tail + piece.tail if piece.length < reach else piece.tail
        before = joined.rstrip(_WORD)
        self.length += piece.length
        if before or self.length == len(joined):
            self.word_begins = self.length - len(joined) + len(before)
        self.tail = joined[-reach:]


class StreamGuard:
    """Takes the events of one stream in their order, and gives out those that may be sent."""

    def __init__(self, redactor: Redactor) -> None:
        """Nothing has come yet."""
        self._redactor = redactor
        self._reach = reach_of(redactor)
        self._ahead = min(_SENT_AHEAD, redactor.longest // 4)
        self._channels: dict[Path, _Channel] = {}
        self._held: deque[tuple[bytes, dict[Path, int]]] = deque()
        self._held_bytes = 0

    def feed(self, event: Event) -> list[bytes]:
        """Take an event; return those that may be sent now.

        Raises:
            RefusedError: it completes a key that is split over several events; send nothing more.
        """
        self._held.append((event.cleaned, dict(self._join(event.pieces))))
        self._held_bytes += len(event.cleaned)
        ready = []
        while self._held and (self._may_go(self._held[0][1]) or self._is_full()):
            ready.append(self._held.popleft()[0])
            self._held_bytes -= len(ready[-1])
        return ready

    def rest(self) -> list[bytes]:
        """Return what is held, at the end of the stream."""
        held = [event for event, _ in self._held]
        self._held.clear()
        return held

    def _join(self, pieces: Iterable[Piece]) -> Iterator[tuple[Path, int]]:
        """Add an event's texts to their channels; give for each that may grow where its text ends."""
        for piece in pieces:
            if len(self._channels) >= _MOST_CHANNELS and piece.path not in self._channels:
                raise RefusedError(502, "answer_too_large", f"the stream has more than {_MOST_CHANNELS} fields")
            channel = self._channels.setdefault(piece.path, _Channel())
            grows = may_grow(piece.path)
            if piece.tail == channel.tail and not grows:
                continue  # an identifier, the same in each event
            if channel.tail and self._redactor.holds((channel.tail + piece.head).encode(errors="replace")):
                raise key_in_answer()
            channel.add(piece, self._reach)
            if grows:
                yield piece.path, channel.length

    def _may_go(self, ends: dict[Path, int]) -> bool:
        return all(self._is_over(self._channels[path], end) for path, end in ends.items())

    def _is_over(self, channel: _Channel, end: int) -> bool:
        """Tell whether no key that ends later can have more than its first characters before a place."""
        return end <= max(channel.word_begins + self._ahead, channel.length - self._reach)

    def _is_full(self) -> bool:
        return len(self._held) > _MOST_EVENTS or self._held_bytes > _MOST_BYTES


def may_grow(path: Path) -> bool:
    """Tell whether clients join what a field holds over the events of a stream."""
    return bool(_JOINED.intersection(path)) and not _SET.intersection(path)
