"""The tools ``read_file`` and ``write_file``."""

from __future__ import annotations

import hashlib
import uuid

import attrs

from hyperruntime.pool.tools.content import Window, decode, encode
from hyperruntime.pool.tools.inside import remove_left, run_inside, show
from hyperruntime.pool.tools.tool import Param, Tool, ToolProblemError, ToolRequest, done, off_loop
from hyperruntime.pool.values.result import ExecutionResult

READ_LIMIT_BYTES = 1024**3


async def run_read(call: ToolRequest) -> ExecutionResult:
    """Return lines of a file."""
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
    """Let a file flow through a window.

    Raises:
        ToolProblemError: it cannot be read, or is too large to be.
    """

    def take(chunk: bytes) -> None:
        window.write(chunk)
        if window.size_bytes > READ_LIMIT_BYTES:
            raise _TooLargeError

    try:
        await run_inside(call, "read", path, variables={"limit": READ_LIMIT_BYTES + 1}, on_stdout=take)
    except _TooLargeError:
        raise ToolProblemError(
            f"{show(path)!r} is larger than 1 GiB; look at parts of it with bash (head, tail, dd)"
        ) from None


class _TooLargeError(Exception):
    """More has come than a file may have."""


async def run_write(call: ToolRequest) -> ExecutionResult:
    """Write a whole file, or add to its end."""
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
    """Put bytes into a file, whole or not at all; return whether it is new.

    Raises:
        ToolProblemError: they are too many, or the path is refused.
    """
    if len(data) > call.policy.file_bytes:
        raise ToolProblemError(f"{len(data)} bytes are more than the {call.policy.file_bytes} that a file may have")
    variables = {"size": len(data), "append": "1" if append else "", "temporary": f".write-{uuid.uuid4().hex}"}
    try:
        result = await run_inside(call, "write", path, variables=variables, writes=True, data=data)
    except ToolProblemError as problem:
        if problem.result.metadata.get("timed_out"):
            await remove_left(call, path, variables)
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
        "Read a file, whole or some of its lines. Gives text exactly as it is, without line numbers; a file that is "
        "no UTF-8 comes as base64."
    ),
    params=(
        _PATH,
        Param("offset", "integer", "number of the first line", default=1, minimum=1),
        Param("limit", "integer", "how many lines; all where not given", minimum=1),
        Param("max_bytes", "integer", "at most so many bytes", minimum=1),
        Param("encoding", "string", "how it comes", default="auto", choices=("auto", "text", "base64")),
    ),
    run=run_read,
)

WRITE_FILE = Tool(
    name="write_file",
    description=(
        "Write a file, a new one or over an old one, whose mode is kept; missing directories are made. To change "
        "part of a file, use edit_file."
    ),
    params=(
        _PATH,
        Param("content", "string", "what it shall hold", required=True),
        Param("encoding", "string", "how 'content' is given", default="text", choices=("text", "base64")),
        Param("append", "boolean", "add to its end", default=False),
    ),
    run=run_write,
)
