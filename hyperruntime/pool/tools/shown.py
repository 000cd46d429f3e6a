"""Truncate a command's output for a model: keep its head and tail, and count the bytes between."""

from __future__ import annotations

import re

_UTF8_BYTES = 4
_TAIL_BYTES = 3


def kept_bytes(limit_chars: int) -> int:
    """Return how many bytes of a stream an exec must keep for :func:`show_output`, half at each end."""
    return 2 * _UTF8_BYTES * limit_chars


def show_output(data: bytes, limit_chars: int) -> tuple[str, bool]:
    """Return the text for the model, and whether it is truncated; invalid UTF-8 becomes U+FFFD.

    Args:
        data: the stream as an exec returns it, which keeps :func:`kept_bytes` of it: the head, a line with the number
            of dropped bytes, and the tail.
        limit_chars: of a longer text, the first and the last half of so many characters are kept.
    """
    half = kept_bytes(limit_chars) // 2
    head_bytes, notice, tail_bytes = data[:half], data[half:-half], data[-half:]
    total = len(data)
    if total > 2 * half and (dropped := re.search(rb"\d+", notice)):
        total = 2 * half + int(dropped[0])
    elif len(text := data.decode(errors="replace")) <= limit_chars:
        return text, False
    tail_chars = limit_chars // 2
    head = _decode_head(head_bytes)[: limit_chars - tail_chars]
    tail = _decode_tail(tail_bytes)
    tail = tail[len(tail) - tail_chars :]
    missing = total - len(head.encode()) - len(tail.encode())
    return f"{head}\n[... {max(missing, 1)} bytes are not shown ...]\n{tail}", True


def _decode_head(data: bytes) -> str:
    """Return the text of bytes that may end inside a character."""
    text = data.decode(errors="replace")
    return text[:-1] if text.endswith("\ufffd") and not data.endswith("\ufffd".encode()) else text


def _decode_tail(data: bytes) -> str:
    """Return the text of bytes that may begin inside a character."""
    start = 0
    while start < min(_TAIL_BYTES, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:].decode(errors="replace")
