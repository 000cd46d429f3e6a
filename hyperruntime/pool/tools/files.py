"""The tools ``read_file`` and ``write_file``, and how all tools read and write a file."""

from __future__ import annotations

import base64
import hashlib
import os
import uuid
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import Literal

import attrs

from hyperruntime.pool.tools.slot_scripts import run_inside, show
from hyperruntime.pool.tools.tool import (
    ENCODING,
    MAX_BYTES,
    PATH,
    Param,
    Tool,
    ToolProblemError,
    ToolRequest,
    done,
    off_loop,
)
from hyperruntime.pool_values.results import ExecutionResult

READ_LIMIT_BYTES = 1024**3
_REMOVE_TIMEOUT_S = 5.0


class Window:
    """Reads a file in chunks; keeps only some of its lines, and the digest and size of the whole
    file.

    Attributes:
        size_bytes: size of the whole file.
        cut: whether the kept lines were truncated at the limit of bytes.
    """

    def __init__(self, first_line: int, line_count: int | None, max_bytes: int) -> None:
        """Keep ``line_count`` lines (None: all) from ``first_line`` (the first is 1), at most
        ``max_bytes``.
        """
        self.size_bytes = 0
        self.cut = False
        self._first = first_line - 1
        self._count = line_count
        self._max = max_bytes
        self._newlines = 0
        self._ends_open = False
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
        end = (
            None
            if self._count is None
            else _after_lines(chunk, self._first + self._count - self._newlines)
        )
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
        cut: whether the bytes may end inside a character; those of an incomplete character are
            dropped.
        encoding: ``text``, ``base64``, or ``auto`` for text if the bytes are UTF-8, else base64.

    Raises:
        ToolProblemError: the encoding is ``text``, and the bytes are not UTF-8.
    """
    if encoding != "base64":
        try:
            return getincrementaldecoder("utf-8")().decode(data, final=not cut), "text"
        except UnicodeDecodeError:
            if encoding == "text":
                raise ToolProblemError(
                    "the file is not UTF-8 text; use the encoding 'base64'"
                ) from None
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
    except ValueError:
        raise ToolProblemError("'content' is not valid base64; correct it, or send text") from None


async def run_read(call: ToolRequest) -> ExecutionResult:
    """Return the requested lines of a file."""
    args = call.args
    limit_bytes = min(args["max_bytes"] or call.policy.output_chars, call.policy.file_bytes)
    window = await stream_file(
        call, args["path"], Window(args["offset"], args["limit"], limit_bytes)
    )
    kept = window.kept
    content, encoding = await off_loop(
        len(kept), lambda: encode(kept, cut=window.cut, encoding=args["encoding"])
    )
    shown_lines = kept.count(b"\n") + (not kept.endswith(b"\n") and kept != b"")
    last = args["offset"] + shown_lines - 1
    if args["offset"] > max(window.lines, 1):
        raise ToolProblemError(
            f"{show(args['path'])!r} has {window.lines} lines; 'offset' is past its end"
        )
    truncated = len(kept) < window.size_bytes
    notice = _notice(args["offset"], last, window) if truncated and encoding == "text" else ""
    result = done(
        content + notice,
        path=show(args["path"]),
        encoding=encoding,
        bytes=len(kept),
        file_size=window.size_bytes,
        first_line=args["offset"],
        last_line=last,
        total_lines=window.lines,
        sha256=window.sha256,
    )
    return attrs.evolve(result, stdout=content, truncated=truncated)


async def stream_file(call: ToolRequest, path: str, window: Window) -> Window:
    """Read a file in chunks into a window, and return the window.

    Args:
        call: the call, for its slot and its time.
        path: absolute, or relative to the workspace.
        window: keeps the wanted lines.

    Raises:
        ToolProblemError: the file cannot be read, or is larger than 1 GiB.
    """

    def take(chunk: bytes) -> None:
        window.write(chunk)
        if window.size_bytes > READ_LIMIT_BYTES:
            raise ToolProblemError(
                f"{show(path)!r} is larger than 1 GiB; look at parts of it with bash (head, "
                "tail, dd)"
            )

    await run_inside(call, "read", path, variables={"limit": READ_LIMIT_BYTES + 1}, on_stdout=take)
    return window


async def run_write(call: ToolRequest) -> ExecutionResult:
    """Write a whole file, or append to it."""
    args = call.args
    data = await off_loop(len(args["content"]), lambda: decode(args["content"], args["encoding"]))
    new = await replace_file(call, args["path"], data, append=args["append"])
    what = "added to" if args["append"] and not new else "written to"
    return done(
        f"{len(data)} bytes {what} {show(args['path'])}",
        path=show(args["path"]),
        bytes=len(data),
        created=new,
        sha256=await off_loop(len(data), lambda: hashlib.sha256(data).hexdigest()),
    )


async def replace_file(call: ToolRequest, path: str, data: bytes, *, append: bool = False) -> bool:
    """Write bytes to a file atomically, and return whether the file is new.

    Args:
        call: the call; its policy limits the size.
        path: absolute, or relative to the workspace.
        data: the bytes.
        append: whether to keep the present content and add the bytes to its end.

    Raises:
        ToolProblemError: there are too many bytes, or the path cannot be written.
    """
    if len(data) > call.policy.file_bytes:
        raise ToolProblemError(
            f"{len(data)} bytes exceed the limit of {call.policy.file_bytes} for a file"
        )
    variables = {
        "size": len(data),
        "append": "1" if append else "",
        "temporary": f".write-{uuid.uuid4().hex}",
    }
    try:
        result = await run_inside(call, "write", path, variables=variables, writes=True, data=data)
    except ToolProblemError as problem:
        if problem.result.metadata.get("timed_out"):
            with suppress(ToolProblemError):
                await run_inside(
                    call,
                    "forget",
                    path,
                    variables=variables,
                    writes=True,
                    timeout_s=_REMOVE_TIMEOUT_S,
                )
        raise
    return result.stdout == b"new\n"


def _notice(first: int, last: int, window: Window) -> str:
    if window.cut:
        return (
            f"\n[cut here; the file has {window.size_bytes} bytes and {window.lines} lines; "
            "raise 'max_bytes']"
        )
    return f"\n[lines {first} to {last} of {window.lines}; give 'offset' and 'limit' for others]"


READ_FILE = Tool(
    name="read_file",
    description=(
        "Read a file, whole or some of its lines. Returns text exactly as it is, without line "
        "numbers; a file that is not UTF-8 is returned as base64."
    ),
    params=(
        PATH,
        Param("offset", int, "number of the first line", default=1, minimum=1),
        Param("limit", int, "number of lines; all by default", minimum=1),
        MAX_BYTES,
        ENCODING,
    ),
    run=run_read,
)

WRITE_FILE = Tool(
    name="write_file",
    description=(
        "Create a file, or replace its content and keep its mode; missing directories are "
        "created. To change part of a file, use edit_file."
    ),
    params=(
        PATH,
        Param("content", str, "the new content", required=True),
        Param("encoding", Literal["text", "base64"], "encoding of 'content'", default="text"),
        Param("append", bool, "append to the file", default=False),
    ),
    run=run_write,
)
