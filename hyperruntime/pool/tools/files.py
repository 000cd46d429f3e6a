"""The tools ``read_file`` and ``write_file``."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress

import attrs

from hyperruntime.pool.tools.content import Window, decode, encode
from hyperruntime.pool.tools.inside import run_inside, show
from hyperruntime.pool.tools.tool import Param, Tool, ToolProblemError, ToolRequest, done, off_loop
from hyperruntime.pool.values.result import ExecutionResult

READ_LIMIT_BYTES = 1024**3
_REMOVE_TIMEOUT_S = 5.0


async def run_read(call: ToolRequest) -> ExecutionResult:
    """Return the requested lines of a file."""
    args = call.args
    limit_bytes = min(args["max_bytes"] or call.policy.output_chars, call.policy.file_bytes)
    window = Window(args["offset"], args["limit"], limit_bytes)
    await stream_file(call, args["path"], window)
    kept = window.kept
    content, encoding = await off_loop(len(kept), lambda: encode(kept, cut=window.cut, encoding=args["encoding"]))
    shown_lines = kept.count(b"\n") + (not kept.endswith(b"\n") and kept != b"")
    last = args["offset"] + shown_lines - 1
    if args["offset"] > max(window.lines, 1):
        raise ToolProblemError(f"{show(args['path'])!r} has {window.lines} lines; 'offset' is past its end")
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


async def stream_file(call: ToolRequest, path: str, window: Window) -> None:
    """Read a file in chunks into a window.

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
                f"{show(path)!r} is larger than 1 GiB; look at parts of it with bash (head, tail, dd)"
            )

    await run_inside(call, "read", path, variables={"limit": READ_LIMIT_BYTES + 1}, on_stdout=take)


async def run_write(call: ToolRequest) -> ExecutionResult:
    """Write a whole file, or append to it."""
    args = call.args
    content = args["content"]
    data, digest = await off_loop(len(content), lambda: _prepare(content, args["encoding"]))
    new = await replace_file(call, args["path"], data, append=args["append"])
    what = "added to" if args["append"] and not new else "written to"
    return done(
        f"{len(data)} bytes {what} {show(args['path'])}",
        path=show(args["path"]),
        bytes=len(data),
        created=new,
        sha256=digest,
    )


def _prepare(content: str, encoding: str) -> tuple[bytes, str]:
    data = decode(content, encoding)
    return data, hashlib.sha256(data).hexdigest()


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
        raise ToolProblemError(f"{len(data)} bytes are more than the {call.policy.file_bytes} allowed for a file")
    variables = {"size": len(data), "append": "1" if append else "", "temporary": f".write-{uuid.uuid4().hex}"}
    try:
        result = await run_inside(call, "write", path, variables=variables, writes=True, data=data)
    except ToolProblemError as problem:
        if problem.result.metadata.get("timed_out"):
            with suppress(ToolProblemError):
                await run_inside(call, "forget", path, variables=variables, writes=True, timeout_s=_REMOVE_TIMEOUT_S)
        raise
    return result.stdout == b"new\n"


def _notice(first: int, last: int, window: Window) -> str:
    if window.cut:
        return f"\n[cut here; the file has {window.size_bytes} bytes and {window.lines} lines; raise 'max_bytes']"
    return f"\n[lines {first} to {last} of {window.lines}; give 'offset' and 'limit' for others]"


_PATH = Param("path", "string", "absolute, or relative to the workspace", required=True)

READ_FILE = Tool(
    name="read_file",
    description=(
        "Read a file, whole or some of its lines. Returns text exactly as it is, without line numbers; a file that is "
        "not UTF-8 is returned as base64."
    ),
    params=(
        _PATH,
        Param("offset", "integer", "number of the first line", default=1, minimum=1),
        Param("limit", "integer", "number of lines; all by default", minimum=1),
        Param("max_bytes", "integer", "largest number of bytes", minimum=1),
        Param("encoding", "string", "encoding of the content", default="auto", choices=("auto", "text", "base64")),
    ),
    run=run_read,
)

WRITE_FILE = Tool(
    name="write_file",
    description=(
        "Create a file, or replace its content and keep its mode; missing directories are created. To change part of "
        "a file, use edit_file."
    ),
    params=(
        _PATH,
        Param("content", "string", "the new content", required=True),
        Param("encoding", "string", "encoding of 'content'", default="text", choices=("text", "base64")),
        Param("append", "boolean", "append to the file", default=False),
    ),
    run=run_write,
)
