"""Cut a stream of server-sent events into events, byte for byte.

Source: the HTML standard, 9.2.5 "Parsing an event stream": lines end with CRLF, LF or CR; an empty line ends an event.
"""

from __future__ import annotations

import json
import re
from typing import Any

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_LONGEST_END = 4


class EventTooLongError(ValueError):
    """An event did not end within the limit."""


class EventSplitter:
    """Gives out whole events of a stream that comes in pieces of any size."""

    def __init__(self, limit_bytes: int) -> None:
        """Refuse events longer than a limit."""
        self._limit = limit_bytes
        self._held = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are whole now, each with its empty line.

        Raises:
            EventTooLongError: what is held is longer than the limit.
        """
        self._held += data
        events = []
        while match := _END.search(self._held, max(0, self._searched - _LONGEST_END)):
            events.append(bytes(self._held[: match.end()]))
            del self._held[: match.end()]
            self._searched = 0
        self._searched = len(self._held)
        if self._searched > self._limit:
            raise EventTooLongError(f"an event of the stream is longer than {self._limit} bytes")
        return events

    def rest(self) -> bytes:
        """Return what came after the last whole event."""
        return bytes(self._held)


def data_lines(event: bytes) -> bytes:
    """Return an event's data."""
    return b"\n".join(line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:"))


def event_data(event: bytes) -> Any | None:  # noqa: ANN401 - JSON
    """Return the JSON of an event's data lines, or None where it is none."""
    try:
        return json.loads(data_lines(event))
    except (ValueError, RecursionError):
        return None
