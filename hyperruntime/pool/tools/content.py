"""A file's bytes as a model or a program gets them: text where they are UTF-8, else base64. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from typing import Literal

from hyperruntime.pool.tools.tool import ToolProblemError

Encoding = Literal["text", "base64"]


class Window:
    """Keeps some lines of a file that flows by, and the digest and size of the whole; memory is that of the lines.

    Attributes:
        size_bytes: of the whole.
        lines: of the whole; a last one without a newline counts.
        cut: whether the window itself was cut at its limit of bytes.
    """

    def __init__(self, first_line: int, line_count: int | None, max_bytes: int) -> None:
        """Keep ``line_count`` lines from ``first_line`` (1 is the first), at most so many bytes."""
        self.size_bytes = 0
        self.cut = False
        self._first, self._count, self._max = first_line - 1, line_count, max_bytes
        self._newlines, self._ends_open = 0, False
        self._kept = bytearray()
        self._digest = hashlib.sha256()

    @property
    def lines(self) -> int:
        """How many there are."""
        return self._newlines + self._ends_open

    @property
    def sha256(self) -> str:
        """Of the whole."""
        return self._digest.hexdigest()

    @property
    def kept(self) -> bytes:
        """The window."""
        return bytes(self._kept)

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
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
    """Return where the line after ``count`` newlines begins; None where it is not in the chunk."""
    at = 0
    for _ in range(count):
        at = chunk.find(b"\n", at) + 1
        if at == 0:
            return None
    return at


def encode(data: bytes, *, cut: bool = False, encoding: str = "auto") -> tuple[str, Encoding]:
    """Return bytes as text, or as base64 where they are no UTF-8; ``cut`` ones may end inside a character.

    Raises:
        ToolProblemError: text was asked for, and they are none.
    """
    if encoding == "base64":
        return base64.b64encode(data).decode(), "base64"
    for less in range(4 if cut else 1):
        try:
            return data[: len(data) - less].decode(), "text"
        except UnicodeDecodeError:
            continue
    if encoding == "text":
        raise ToolProblemError("it is no UTF-8 text; ask for the encoding 'base64'")
    return base64.b64encode(data).decode(), "base64"


def decode(content: str, encoding: str) -> bytes:
    """Return the bytes that a content stands for.

    Raises:
        ToolProblemError: it is no base64.
    """
    if encoding != "base64":
        return os.fsencode(content)
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ToolProblemError("'content' is not valid base64") from None
