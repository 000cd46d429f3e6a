"""Keep a command's output within a limit: its head and its tail."""

from __future__ import annotations


class OutputBuffer:
    """Collects chunks; past ``limit_bytes`` it keeps the first and the last half, in bounded memory.

    Attributes:
        total_bytes: number of bytes written, kept or not.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Keep at most ``limit_bytes`` (at least 2)."""
        self.total_bytes = 0
        self._head_limit = max(1, (limit_bytes + 1) // 2)
        self._tail_limit = max(1, limit_bytes - self._head_limit)
        self._head = bytearray()
        self._tail = bytearray()

    @property
    def truncated(self) -> bool:
        """Whether bytes were dropped."""
        return self.total_bytes > self._head_limit + self._tail_limit

    def write(self, chunk: bytes) -> None:
        """Add a chunk."""
        self.total_bytes += len(chunk)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    def value(self) -> bytes:
        """Return all bytes, or the head, one line with the number of dropped bytes, and the tail."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        missing = self.total_bytes - self._head_limit - self._tail_limit
        notice = b"\n[%d bytes of output dropped here]\n" % missing
        return bytes(self._head + notice + self._tail[-self._tail_limit :])
