"""Split a stream of server-sent events into events, byte for byte.

Source: the HTML standard, 9.2.5 "Parsing an event stream": lines end with CRLF, LF or CR; an empty
line ends an event.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hyperruntime.gateway.request.parse import RequestRefusedError

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_LONGEST_END = 4


class EventSplitter:
    """Splits a stream that arrives in pieces of any size into whole events."""

    def __init__(self, limit_bytes: int) -> None:
        """Start with an empty buffer of at most `limit_bytes`."""
        self._limit = limit_bytes
        self._held = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are complete now, each with its empty line.

        Raises:
            RequestRefusedError: the incomplete event is longer than the limit.
        """
        self._held += data
        events = []
        while match := _END.search(self._held, max(0, self._searched - _LONGEST_END)):
            events.append(bytes(self._held[: match.end()]))
            del self._held[: match.end()]
            self._searched = 0
        self._searched = len(self._held)
        if self._searched > self._limit:
            why = f"an event of the stream is longer than {self._limit} bytes"
            raise RequestRefusedError(502, "answer_too_large", why)
        return events

    def rest(self) -> bytes:
        """Return the bytes after the last complete event."""
        return bytes(self._held)


def data_lines(event: bytes) -> bytes:
    """Return the joined values of an event's ``data`` lines."""
    return b"\n".join(
        line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")
    )


def event_data(event: bytes) -> Any | None:  # noqa: ANN401 - JSON
    """Return the parsed JSON of an event's data, or None if it is not JSON."""
    try:
        return json.loads(data_lines(event))
    except (ValueError, RecursionError):
        return None
