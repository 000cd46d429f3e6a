"""Truncate a command's output for a model: keep its head and tail, and count the bytes between."""

from __future__ import annotations

_UTF8_BYTES = 4
_TAIL_BYTES = 3


class Shown:
    """Collects one stream in bounded memory; keeps the first and last ``limit_chars / 2`` characters."""

    def __init__(self, limit_chars: int) -> None:
        """Keep at most ``limit_chars`` characters."""
        self._head_chars = (limit_chars + 1) // 2
        self._tail_chars = limit_chars - self._head_chars
        self._room = _UTF8_BYTES * limit_chars
        self._head, self._tail = bytearray(), bytearray()
        self._total = 0

    def write(self, chunk: bytes) -> None:
        """Add the next bytes of the stream."""
        self._total += len(chunk)
        room = self._room - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[max(room, 0) :]
        if len(self._tail) > 2 * self._room:
            del self._tail[: -self._room]

    def text(self) -> tuple[str, bool]:
        """Return the text for the model, and whether it is truncated; invalid UTF-8 becomes U+FFFD."""
        kept = bytes(self._head + self._tail)
        limit = self._head_chars + self._tail_chars
        whole = self._total == len(kept)
        if whole and len(text := kept.decode(errors="replace")) <= limit:
            return text, False
        head = _decode_head(kept[: self._room])[: self._head_chars]
        tail = _decode_tail(kept[-self._room :])
        tail = tail[len(tail) - self._tail_chars :]
        missing = self._total - len(head.encode()) - len(tail.encode())
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
