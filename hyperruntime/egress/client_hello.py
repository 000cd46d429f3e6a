"""Read which server a TLS client names, without taking part: OpenSSL parses its first message."""

from __future__ import annotations

import ssl

_MOST_BYTES = 65536


class ClientHello:
    """The first message of a TLS client, fed piece by piece.

    Attributes:
        name: the server that it names; None if it names none.
        is_read: whether the message is there.
        alert: what a TLS server that does not have this name answers.
    """

    def __init__(self) -> None:
        """Expect the first bytes."""
        self.name: str | None = None
        self.is_read = False
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.sni_callback = self._named
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._left = _MOST_BYTES

    def feed(self, data: bytes) -> str:
        """Take bytes; return why they are no such message, as the end of a sentence, or ""."""
        self._left -= len(data)
        self._in.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return "its first message is too long" if self._left <= 0 else ""
        except ssl.SSLError as error:
            # after the name was read, OpenSSL ends the handshake that we do not continue
            return "" if self.is_read else f"it does not speak TLS ({error.reason})"
        return ""

    @property
    def alert(self) -> bytes:
        """The alert `unrecognized_name`, for the client."""
        return self._out.read()

    def _named(self, tls: object, name: str | None, context: object) -> int:
        self.is_read = True
        self.name = name
        return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
