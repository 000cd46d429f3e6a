"""The tools ``read_artifact``, ``list_artifacts`` and ``archive_artifacts``, with one schema for
all three.

Their results are for programs (a run's record, a trainer). Limits are checked while data arrives.
"""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import os
from typing import Any

from hyperruntime.errors import TransferError
from hyperruntime.pool.tools.archiving import Form, Packed, pack
from hyperruntime.pool.tools.files import Window, encode, stream_file
from hyperruntime.pool.tools.listing import list_entries
from hyperruntime.pool.tools.slot_scripts import run_inside, show
from hyperruntime.pool.tools.tool import (
    ENCODING,
    MAX_BYTES,
    MAX_ENTRIES,
    PATH,
    Param,
    Tool,
    ToolProblemError,
    ToolRequest,
    done,
    off_loop,
)
from hyperruntime.pool_values.results import ExecutionResult

_DRAIN_BYTES = 1 << 20
_MIMES = {"tar.gz": "application/gzip", "tar": "application/x-tar", "zip": "application/zip"}
_SCHEMA: dict[str, Any] = {
    "path": "",
    "content": None,
    "encoding": None,
    "bytes": 0,
    "file_size": None,
    "truncated": False,
    "sha256": None,
    "mime": None,
    "entries": None,
    "format": None,
}


def artifact(result: ExecutionResult) -> dict[str, Any]:
    """Return the result of one of these tools in their common schema, with all keys.

    The keys: ``success``, ``error``, ``path``, ``content``, its ``encoding`` (``text`` or
    ``base64``), ``bytes`` (its decoded size), ``file_size`` and ``sha256`` of the whole file or
    archive, ``truncated``, ``mime``, ``entries`` (each with ``path``, ``type``, ``size``,
    ``mtime``), ``format`` of an archive. A key that does not apply is None, 0, False or "".
    """
    known = {key: result.metadata.get(key, default) for key, default in _SCHEMA.items()}
    return {"success": result.success, "error": result.error, **known}


def _artifact(call: ToolRequest, output: str, **facts: Any) -> ExecutionResult:  # noqa: ANN401 - JSON values
    return done(output, **{**_SCHEMA, "path": show(call.args["path"]), **facts})


async def run_read(call: ToolRequest) -> ExecutionResult:
    """Return a file's content, truncated at the limit, and the digest of the whole file."""
    args = call.args
    most = call.policy.artifact_bytes
    window = await stream_file(
        call, args["path"], Window(1, None, min(args["max_bytes"] or most, most))
    )
    data = window.kept
    content, encoding = await off_loop(
        len(data), lambda: encode(data, cut=window.cut, encoding=args["encoding"])
    )
    path = show(args["path"])
    kept = len(content.encode()) if encoding == "text" else len(data)
    return _artifact(
        call,
        f"{kept} of {window.size_bytes} bytes of {path}",
        content=content,
        encoding=encoding,
        bytes=kept,
        file_size=window.size_bytes,
        truncated=kept < window.size_bytes,
        sha256=window.sha256,
        mime=mimetypes.guess_type(path)[0]
        or ("text/plain" if encoding == "text" else "application/octet-stream"),
    )


async def run_list(call: ToolRequest) -> ExecutionResult:
    """Return the entries of a directory, including hidden names."""
    found, truncated = await list_entries(call, hidden=True)
    return _artifact(call, f"{len(found)} entries", entries=found, truncated=truncated)


async def run_archive(call: ToolRequest) -> ExecutionResult:
    """Return a directory or a file as one archive."""
    form = call.args["format"]
    packed, torn = await _pack(call)
    problems = [*packed.problems, *torn]
    return _artifact(
        call,
        "\n".join(
            [f"{len(packed.entries)} entries in {len(packed.data)} bytes of {form}", *problems]
        ),
        content=base64.b64encode(packed.data).decode(),
        encoding="base64",
        bytes=len(packed.data),
        file_size=len(packed.data),
        truncated=bool(problems),
        sha256=packed.sha256,
        mime=_MIMES[form],
        entries=list(packed.entries),
        format=form,
        problems=problems,
    )


async def _pack(call: ToolRequest) -> tuple[Packed, tuple[str, ...]]:
    """Return the archive, built in a thread while tar writes, and tar's error messages."""
    path = call.args["path"]
    form = call.args["format"]
    policy = call.policy
    max_bytes = min(call.args["max_bytes"] or policy.artifact_bytes, policy.artifact_bytes)
    max_entries = min(call.args["max_entries"] or policy.max_entries, policy.max_entries)
    read_fd, write_fd = os.pipe()

    def make() -> Packed:
        with os.fdopen(read_fd, "rb") as source:
            packed = pack(source, form, max_bytes=max_bytes, max_entries=max_entries)
            source.read(_DRAIN_BYTES)  # the padding that tar writes after the end marker
            return packed

    making = asyncio.create_task(asyncio.to_thread(make))
    torn: tuple[str, ...] = ()
    try:
        variables = {"whole": "1" if form == "zip" else ""}
        await run_inside(
            call,
            "archive",
            path,
            variables=variables,
            on_stdout=lambda chunk: _write_all(write_fd, chunk),
        )
    except ToolProblemError as problem:
        if problem.result.metadata.get("reason") != "partial":
            raise
        torn = (str(problem),)
    except BrokenPipeError:
        pass  # make() has failed; its exception says why
    finally:
        os.close(write_fd)
        await asyncio.wait([making])
        problem_of_making = making.exception()
    if isinstance(problem_of_making, TransferError):
        raise ToolProblemError(
            f"{show(path)!r} cannot be archived: {problem_of_making}"
        ) from problem_of_making
    return making.result(), torn


def _write_all(descriptor: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


_DIRECTORY = Param("path", str, "absolute, or relative to the workspace", default=".")

READ_ARTIFACT = Tool(
    name="read_artifact",
    description="Return a file of the workspace with its digest, to keep it; to read a file, use "
    "read_file.",
    params=(
        PATH,
        ENCODING,
        MAX_BYTES,
    ),
    run=run_read,
    hidden=True,
)

LIST_ARTIFACTS = Tool(
    name="list_artifacts",
    description="List a directory of the workspace with types, sizes and times, including hidden names.",
    params=(
        _DIRECTORY,
        Param("recursive", bool, "also list subdirectories", default=False),
        MAX_ENTRIES,
    ),
    run=run_list,
    hidden=True,
)

ARCHIVE_ARTIFACTS = Tool(
    name="archive_artifacts",
    description="Return a directory or a file of the workspace as one archive in base64, with its "
    "digest.",
    params=(
        _DIRECTORY,
        Param("format", Form, "format of the archive", default="tar.gz"),
        MAX_BYTES,
        MAX_ENTRIES,
    ),
    run=run_archive,
    hidden=True,
)
