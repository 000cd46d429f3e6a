"""Keep keys out of streams of events, also a key that is split over several events.

Clients join the texts of events (``choices[].delta.content``). The guard joins them too, field by
field, and ends the stream when a joined text holds a key. While a joined text ends in the beginning
of a key, in any spelling, the guard holds events back. It starts only when the beginning is too
long to guess. Otherwise a client could let the server say one guess after the other, and see from
the delays which guess is right.
"""

from __future__ import annotations

import attrs

from hyperruntime.gateway.answer.screen import (
    Event,
    Path,
    Piece,
    joined_paths,
    key_in_answer,
    reach_of,
)
from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.secrets.redact import Redactor

_MOST_EVENTS = 4096
_MOST_BYTES = 256 * 1024
_MOST_CHANNELS = 2048
# Clients do not join the values of these fields.
_SET = frozenset(
    {"id", "item_id", "role", "type", "name", "object", "model", "finish_reason", "stop_reason"}
)


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
    """Takes the events of one stream in order, and returns those that are safe to send."""

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
