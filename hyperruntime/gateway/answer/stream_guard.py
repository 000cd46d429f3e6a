"""Keep keys out of streams of events, also one that is split over several events.

Clients join the texts of events (``choices[].delta.content``). The guard joins them too, field by field, and ends the
stream when a joined text holds a key. While a text ends in what may become one, in any spelling, it holds events back.
Not before so much of it is there that nobody guesses it: else a client could have the server say one guess after the
other, and read from the delays which is right.
"""

from __future__ import annotations

import attrs

from hyperruntime.gateway.answer.screen import Event, Path, Piece, key_in_answer, places, reach_of
from hyperruntime.gateway.log.redact import Redactor
from hyperruntime.gateway.request.parse import RequestRefusedError

_MOST_EVENTS = 4096
_MOST_BYTES = 256 * 1024
_MOST_CHANNELS = 2048
_SET = frozenset({"id", "role", "type", "name", "object", "model", "finish_reason", "stop_reason"})  # never joined


@attrs.define
class _Channel:
    """A text that grows over events: its last characters, and the last that came."""

    tail: str = ""
    last: str = ""


class StreamGuard:
    """Takes the events of one stream in their order, and gives out those that may be sent."""

    def __init__(self, redactor: Redactor) -> None:
        """Nothing has come yet."""
        self._redactor = redactor
        self._reach = reach_of(redactor)
        self._channels: dict[Path, _Channel] = {}
        self._begun: set[Path] = set()
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, event: Event) -> list[bytes]:
        """Take an event; return those that may be sent now.

        Raises:
            RequestRefusedError: it completes a key that is split over several events, or too much is held; the
                caller must send nothing more.
        """
        for piece in event.pieces:
            for path in places(piece.path):
                self._join(path, piece)
        self._held.append(event.cleaned)
        if not self._begun:
            return self.rest()
        self._held_bytes += len(event.cleaned)
        if len(self._held) > _MOST_EVENTS or self._held_bytes > _MOST_BYTES:
            raise key_in_answer()
        return []

    def rest(self) -> list[bytes]:
        """Return what is held, at the end of the stream."""
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    def _join(self, path: Path, piece: Piece) -> None:
        """Add a text to its channel, and look whether a key is in it or may have begun."""
        if len(self._channels) >= _MOST_CHANNELS and path not in self._channels:
            raise RequestRefusedError(502, "answer_too_large", f"the stream has more than {_MOST_CHANNELS} fields")
        channel = self._channels.setdefault(path, _Channel())
        if piece.tail == channel.last and path[-1:] and path[-1] in _SET:
            return  # an identifier, the same in each event
        channel.last = piece.tail
        joined = channel.tail + piece.head
        is_short = piece.head == piece.tail
        channel.tail = (joined if is_short else piece.tail)[-self._reach :]
        self._begun.discard(path)
        data = joined.encode(errors="replace")
        may_hold = self._redactor.may_hold(data)
        if may_hold and self._redactor.holds(data):
            raise key_in_answer()
        if (may_hold or not is_short) and self._redactor.begins(channel.tail.encode(errors="replace")):
            self._begun.add(path)
