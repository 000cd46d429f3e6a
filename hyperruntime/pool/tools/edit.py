"""The tools ``edit_file`` and ``patch``: change text files by exact matches."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Mapping
from typing import Any

import attrs

from hyperruntime.pool.tools.files import Window, replace_file, stream_file
from hyperruntime.pool.tools.slot_scripts import absolute, run_inside, show
from hyperruntime.pool.tools.tool import (
    PATH,
    Param,
    Tool,
    ToolProblemError,
    ToolRequest,
    done,
    off_loop,
)
from hyperruntime.pool.tools.unified import FileDiff, apply_hunks, parse_diff
from hyperruntime.pool_values.results import ExecutionResult

_MAX_FILES = 200
_MAX_BYTES = 16 * 1024**2


async def run_edit(call: ToolRequest) -> ExecutionResult:
    """Replace a text, or apply a diff to one file."""
    args = call.args
    if (args["patch"] is None) == (args["old"] is None):
        raise ToolProblemError("give either 'old' and 'new', or 'patch' with a unified diff")
    if args["patch"] is not None:
        return await run_patch(call)
    before = await read_whole(call, args["path"])
    after, count, line = await off_loop(len(before), lambda: _edit(before, args))
    await replace_file(call, args["path"], after)
    where = f"at line {line}" if count == 1 else f"in {count} places, from line {line} on"
    return await _changed(
        f"{show(args['path'])} is changed {where}", args["path"], after, replacements=count
    )


def _edit(before: bytes, args: Mapping[str, Any]) -> tuple[bytes, int, int]:
    """Return the file after the replacement, the number of replacements, and the line of the
    first.
    """
    old = os.fsencode(args["old"])
    new = os.fsencode(args["new"] or "")
    path = show(args["path"])
    if not old:
        raise ToolProblemError("'old' is empty; to write a whole file use write_file")
    if old == new:
        raise ToolProblemError("'old' and 'new' are the same, so nothing would change")
    places = _places(before, old, 6)
    if not places:
        raise ToolProblemError(f"'old' is not in {path}; {_hint(before, old)}")
    lines = [before.count(b"\n", 0, at) + 1 for at in places]
    if len(places) > 1 and not args["replace_all"]:
        shown = ", ".join(map(str, lines[:5])) + (" and others" if len(places) > 5 else "")
        raise ToolProblemError(
            f"'old' is in {path} several times, at lines {shown}; include more of the "
            "surrounding lines, or set 'replace_all'"
        )
    return before.replace(old, new), before.count(old), lines[0]


async def read_whole(call: ToolRequest, path: str) -> bytes:
    """Return a file's content.

    Args:
        call: the call; its policy limits the size, which is never over 16 MiB.
        path: absolute, or relative to the workspace.

    Raises:
        ToolProblemError: the file cannot be read, or is too large.
    """
    window = await stream_file(call, path, Window(1, None, min(call.policy.file_bytes, _MAX_BYTES)))
    if window.cut:
        raise ToolProblemError(
            f"{show(path)!r} has {window.size_bytes} bytes, too many to edit; use bash (sed)"
        )
    return window.kept


@attrs.frozen
class _Change:
    """One file's content before and after a change; None if it does not exist.

    ``missing`` is the number of directories above it that did not exist before.
    """

    path: str
    before: bytes | None
    after: bytes | None
    missing: int = 0


async def run_patch(call: ToolRequest) -> ExecutionResult:
    """Apply a diff to one or more files; compute all changes before the first write, so that all
    are made or none.
    """
    path = call.args["path"]
    workdir = call.args.get("workdir") or ""
    text = os.fsencode(call.args["patch"])
    only = None if path is None else os.fsencode(path)
    files = await off_loop(len(text), lambda: parse_diff(text, only))
    paths = [posixpath.join(workdir, os.fsdecode(file.path)) for file in files]
    if len(files) > _MAX_FILES or len({absolute(call, each) for each in paths}) < len(files):
        raise ToolProblemError(f"a diff must name each file once, and at most {_MAX_FILES} files")
    changes = [await _change(call, file, each) for file, each in zip(files, paths, strict=True)]
    for number, change in enumerate(changes):
        try:
            await _carry_out(call, change)
        except ToolProblemError as problem:
            await _take_back(call, changes[: number + 1])
            raise ToolProblemError(f"nothing was changed: {problem}") from None
    lines = [f"{show(change.path)} is {_word(change)}" for change in changes]
    if len(changes) == 1:
        return await _changed(lines[0], changes[0].path, changes[0].after or b"")
    return done("\n".join(lines), paths=[show(change.path) for change in changes])


async def _change(call: ToolRequest, file: FileDiff, path: str) -> _Change:
    if file.old is None:
        try:
            result = await run_inside(call, "absent", path, writes=True)
        except ToolProblemError as problem:
            if problem.result.metadata.get("reason") == "exists":
                raise ToolProblemError(
                    f"{show(path)!r} already exists, so the diff cannot create it"
                ) from None
            raise
        return _Change(path, None, apply_hunks(b"", file.hunks), missing=result.stdout.count(b"/"))
    before = await read_whole(call, path)
    try:
        after = await off_loop(len(before), lambda: apply_hunks(before, file.hunks))
    except ToolProblemError as problem:
        raise ToolProblemError(f"{show(path)!r}: {problem}") from None
    if file.new is None and after:
        raise ToolProblemError(
            f"{show(path)!r} cannot be removed: the diff does not remove all its lines"
        )
    return _Change(path, before, None if file.new is None else after)


async def _carry_out(call: ToolRequest, change: _Change) -> None:
    if change.after is None:
        await run_inside(call, "remove", change.path, writes=True)
    else:
        await replace_file(call, change.path, change.after)


async def _take_back(call: ToolRequest, changes: list[_Change]) -> None:
    """Undo the changes; the last one has failed, but may have made directories."""
    for change in changes[:-1]:
        await _carry_out(call, _Change(change.path, change.after, change.before))
    for change in changes:
        if change.missing:
            await run_inside(
                call, "tidy", change.path, variables={"made": change.missing}, writes=True
            )


def _word(change: _Change) -> str:
    return "removed" if change.after is None else "created" if change.before is None else "changed"


async def _changed(output: str, path: str, after: bytes, **facts: int) -> ExecutionResult:
    digest = await off_loop(len(after), lambda: hashlib.sha256(after).hexdigest())
    return done(output, path=show(path), bytes=len(after), sha256=digest, **facts)


def _hint(content: bytes, old: bytes) -> str:
    if b"\r\n" in content and b"\n" in old and b"\r\n" not in old:
        return "the file's lines end with \\r\\n, so 'old' must too"
    if b" ".join(old.split()) in b" ".join(content.split()):
        return (
            "the file has it with other blanks or line breaks, but it must match exactly: read "
            "the file again"
        )
    return "it must match exactly, blanks and line breaks included: read the file again"


def _places(content: bytes, text: bytes, most: int) -> list[int]:
    """Return the offsets of the first ``most`` occurrences of a text, including overlapping
    ones.
    """
    places: list[int] = []
    at = content.find(text)
    while at != -1 and len(places) < most:
        places.append(at)
        at = content.find(text, at + 1)
    return places


_PATCH = (
    "a unified diff ('--- a/PATH', '+++ b/PATH', '@@ -1,3 +1,4 @@', then lines that begin with "
    "' ', '-' or '+')"
)

EDIT_FILE = Tool(
    name="edit_file",
    description=(
        "Change a text file: replace 'old' with 'new'. 'old' must match exactly and be in the "
        "file exactly once; with 'replace_all' every occurrence is replaced. Or give 'patch', a "
        "unified diff of this one file."
    ),
    params=(
        PATH,
        Param("old", str, "the text to replace, with enough surrounding lines to occur only once"),
        Param("new", str, "the new text; 'old' is removed if it is not given"),
        Param("replace_all", bool, "replace every occurrence", default=False),
        Param("patch", str, f"instead of 'old' and 'new': {_PATCH}"),
    ),
    run=run_edit,
)

PATCH = Tool(
    name="patch",
    description=(
        "Apply a unified diff to one or more files: change, create ('--- /dev/null') and remove "
        "('+++ /dev/null') files. If any part does not fit, nothing is changed."
    ),
    params=(
        Param("patch", str, _PATCH, required=True),
        Param("path", str, "path of the file, if the diff changes one file and does not name it"),
        Param(
            "workdir",
            str,
            "directory that the paths in the diff are relative to; the workspace by default",
        ),
    ),
    run=run_patch,
)
