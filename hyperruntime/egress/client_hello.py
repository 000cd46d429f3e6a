"""Read which server a TLS client names, without taking part: OpenSSL parses its first message."""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import Any

_MOST_BYTES = 65536
_MOST_PIECES = 2000
_SERVER_NAME = b"\0\0"


class _Reading(ssl.SSLObject):
    """A handshake of which only the first message is read."""

    is_read = False
    name: str | None = None


class ClientHello:
    """The first message of a TLS client, fed piece by piece."""

    def __init__(self) -> None:
        """Expect the first bytes."""
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls: Any = _context().wrap_bio(self._in, self._out, server_side=True)
        self._seen = b""
        self._pieces = 0

    @property
    def is_read(self) -> bool:
        """Whether the message is there."""
        return bool(self._tls.is_read)

    @property
    def name(self) -> str | None:
        """The server that it names; None if it names none."""
        found: str | None = self._tls.name
        return found

    @property
    def alert(self) -> bytes:
        """The alert `unrecognized_name`, as a TLS server sends it that does not have this name."""
        return self._out.read()

    def feed(self, data: bytes) -> str:
        """Take bytes; return why they are no such message, as the end of a sentence, or ""."""
        self._seen += data
        self._pieces += 1
        if len(self._seen) > _MOST_BYTES or self._pieces > _MOST_PIECES:
            return "its first message is too long"
        if _has_odd_name(self._seen):
            return "it names a server in letters that are not ASCII"
        self._in.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return ""
        except ssl.SSLError as error:
            # after the name was read, OpenSSL ends the handshake that we do not continue
            return "" if self.is_read else f"it does not speak TLS ({error.reason})"
        return ""


@lru_cache(1)
def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.sslobject_class = _Reading
    context.sni_callback = _named
    return context


def _named(tls: Any, name: str | None, context: object) -> int:  # noqa: ANN401 - a _Reading
    tls.is_read = True
    tls.name = name
    return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)


def _has_odd_name(data: bytes) -> bool:
    """Return whether a whole message names a server in bytes that are not ASCII: Python would print
    an error that it cannot pass on.

    Source: RFC 8446, sections 4.1.2, 4.2 and 5.1; RFC 6066, section 3.
    """
    hello = b""
    while len(data) >= 5:
        size = int.from_bytes(data[3:5])
        hello += data[5 : 5 + size]
        data = data[5 + size :]
    at = 38
    for width in (1, 2, 1):  # the session, the ciphers, the compressions
        at += width + int.from_bytes(hello[at : at + width])
    at += 2
    while at + 4 <= len(hello):
        kind = hello[at : at + 2]
        size = int.from_bytes(hello[at + 2 : at + 4])
        if kind == _SERVER_NAME and not hello[at + 4 : at + 4 + size][5:].isascii():
            return True
        at += 4 + size
    return False
