"""The token by which a server knows its clients: made, found in a header field, and compared."""

from __future__ import annotations

import hmac
import secrets


def new_token() -> str:
    """Return a new random token of 256 bits."""
    return secrets.token_urlsafe(32)


def bearer_token(field: str) -> str:
    """Return the token in a header field ``Authorization``; "" if it has none. Source: RFC 6750,
    2.1.
    """
    scheme, _, token = field.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_token(given: str | bytes, token: str) -> bool:
    """Return whether a client gave the right token; the time does not depend on where it differs.

    Args:
        given: any text or bytes, such as a header field with bytes that are not UTF-8.
        token: the right one; nobody has an empty one.
    """
    shown = given if isinstance(given, bytes) else given.encode(errors="surrogatepass")
    return token != "" and hmac.compare_digest(shown, token.encode())
