"""Encode a file's bytes as text if they are UTF-8, else as base64; no I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os

from hyperruntime.pool.tools.tool import ToolProblemError


class Window:
    """Reads a file in chunks; keeps only some of its lines, and the digest and size of the whole file.

    Attributes:
        size_bytes: size of the whole file.
        cut: whether the kept lines were truncated at the limit of bytes.
    """

    def __init__(self, first_line: int, line_count: int | None, max_bytes: int) -> None:
        """Keep ``line_count`` lines (None: all) from ``first_line`` (the first is 1), at most ``max_bytes``."""
        self.size_bytes = 0
        self.cut = False
        self._first, self._count, self._max = first_line - 1, line_count, max_bytes
        self._newlines, self._ends_open = 0, False
        self._kept = bytearray()
        self._digest = hashlib.sha256()

    @property
    def lines(self) -> int:
        """Number of lines of the whole file; a last line without a newline counts."""
        return self._newlines + self._ends_open

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of the whole file."""
        return self._digest.hexdigest()

    @property
    def kept(self) -> bytes:
        """The bytes of the kept lines."""
        return bytes(self._kept)

    def write(self, chunk: bytes) -> None:
        """Add the next bytes of the file."""
        if not chunk:
            return
        self._digest.update(chunk)
        self.size_bytes += len(chunk)
        self._keep(chunk)
        self._newlines += chunk.count(b"\n")
        self._ends_open = not chunk.endswith(b"\n")

    def _keep(self, chunk: bytes) -> None:
        start = _after_lines(chunk, self._first - self._newlines)
        if start is None:
            return
        end = None if self._count is None else _after_lines(chunk, self._first + self._count - self._newlines)
        part = chunk[start:end]
        room = self._max - len(self._kept)
        self.cut = self.cut or len(part) > room
        self._kept += part[:room]


def _after_lines(chunk: bytes, count: int) -> int | None:
    """Return the index after ``count`` newlines; None if the chunk has fewer."""
    at = 0
    for _ in range(count):
        at = chunk.find(b"\n", at) + 1
        if at == 0:
            return None
    return at


def encode(data: bytes, *, cut: bool = False, encoding: str = "auto") -> tuple[str, str]:
    """Return bytes as a string, and its encoding.

    Args:
        data: the bytes.
        cut: whether the bytes may end inside a character; those of an incomplete character are dropped.
        encoding: ``text``, ``base64``, or ``auto`` for text if the bytes are UTF-8, else base64.

    Raises:
        ToolProblemError: the encoding is ``text``, and the bytes are not UTF-8.
    """
    if encoding == "base64":
        return base64.b64encode(data).decode(), "base64"
    for less in range(4 if cut else 1):
        try:
            return data[: len(data) - less].decode(), "text"
        except UnicodeDecodeError:
            continue
    if encoding == "text":
        raise ToolProblemError("the file is not UTF-8 text; use the encoding 'base64'")
    return base64.b64encode(data).decode(), "base64"


def decode(content: str, encoding: str) -> bytes:
    """Return the bytes of a content.

    Args:
        content: text, or base64 with any white space.
        encoding: ``text`` or ``base64``.

    Raises:
        ToolProblemError: the content is not valid base64.
    """
    if encoding != "base64":
        return os.fsencode(content)
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ToolProblemError("'content' is not valid base64") from None
