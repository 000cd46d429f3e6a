"""Run one of the programs of ``sh/`` in a slot: the path is resolved there, by the rules of that kernel."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from importlib import resources

from hyperruntime.pool.tools.tool import ToolProblemError, ToolRequest
from hyperruntime.spec import ExecResult

_LIMIT_BYTES = 64 * 1024
_REMOVE_TIMEOUT_S = 5.0
# What the programs of sh/ end with: a word for programs, kept as metadata["reason"], and a sentence.
_REASONS = {
    80: ("workspace", "the workspace {workspace} is gone; make it again with bash and the workdir '/'"),
    81: ("outside", "{path} is outside the workspace {workspace}; give a path in it"),
    82: ("missing", "{path} does not exist"),
    83: ("directory", "{path} is a directory; give a file"),
    84: ("special", "{path} is no regular file but a device, a pipe or a socket; give a regular file"),
    85: ("denied", "{path} cannot be opened: permission denied"),
    86: ("links", "{path} leads through too many symbolic links"),
    87: ("links", "{path} is a symbolic link, and the image has no readlink to follow it"),
    88: ("unwritten", "{path} could not be written: {why}"),
    89: ("torn", "{path} was not written: its content did not arrive whole; try again"),
    90: ("no directory", "{path} is no directory"),
    91: ("program", "the image lacks a program that this tool needs: {why}"),
    92: ("partial", "{path} is not whole in the archive: {why}"),
    93: ("pattern", "the pattern is not understood: {why}"),
    94: ("exists", "{path} is there already"),
}


async def run_inside(
    call: ToolRequest,
    program: str,
    path: str,
    *,
    variables: Mapping[str, str | int] | None = None,
    writes: bool = False,
    data: bytes | None = None,
    on_stdout: Callable[[bytes], None] | None = None,
) -> ExecResult:
    """Run a program of ``sh/`` on a path of the slot, and return how it ended where it did what it should.

    Args:
        call: whose time it takes.
        program: name of the file without ``.sh``.
        path: absolute, or relative to the workspace; any characters but NUL.
        variables: that the program reads.
        writes: whether roots that may only be read are out of bounds.
        data: its standard input.
        on_stdout: takes its standard output; without it the result holds the first 64 KiB.

    Raises:
        ToolProblemError: the path is refused, or the program failed; the sentence says why.
    """

    def take(stream: str, chunk: bytes) -> None:
        if on_stdout is not None and stream == "stdout":
            on_stdout(chunk)

    text = _script(call, program, path, variables or {}, writes=writes)
    result = await call.place.aexec(
        ["sh", "-c", text],
        workdir="/",
        timeout_s=call.remaining_s(),
        input=data,
        on_output=take,
        output_limit_bytes=_LIMIT_BYTES,
    )
    check(call, path, result)
    return result


async def remove_left(call: ToolRequest, path: str, variables: Mapping[str, str | int]) -> None:
    """Remove what an ended write left beside its file; does its best."""
    text = _script(call, "forget", path, variables, writes=True)
    await call.place.aexec(["sh", "-c", text], workdir="/", timeout_s=_REMOVE_TIMEOUT_S)


def check(call: ToolRequest, path: str, result: ExecResult) -> None:
    """Refuse a result that is none.

    Raises:
        ToolProblemError: it timed out, or the program says by its exit code what was wrong.
    """
    if result.timed_out:
        raise ToolProblemError(f"not done within {call.timeout_s:g} s", timed_out=True)
    if result.exit_code == 0:
        return
    why = result.stderr.decode(errors="replace").strip()[-500:].replace("\n", "; ")
    reason, sentence = _REASONS.get(result.exit_code, ("failed", "{path}: exit code {code}: {why}"))
    shown = {"path": repr(show(path)), "workspace": call.place.workspace, "code": result.exit_code}
    raise ToolProblemError(sentence.format(**shown, why=why or "no reason was given"), reason=reason)


def show(path: str) -> str:
    """Return a path as text that any encoder takes."""
    return os.fsencode(path).decode(errors="replace")


def quote(text: str) -> str:
    """Return a text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def absolute(call: ToolRequest, path: str) -> str:
    """Return a path from the root, without empty parts and single dots; ``..`` is left to the kernel's rules.

    Raises:
        ToolProblemError: it is empty or holds NUL.
    """
    if not path or "\0" in path:
        raise ToolProblemError("a path must not be empty and cannot hold a NUL character")
    whole = path if path.startswith("/") else f"{call.place.workspace}/{path}"
    return "/" + "/".join(part for part in whole.split("/") if part not in ("", "."))


@functools.cache
def _program(name: str) -> str:
    return resources.files("hyperruntime.pool.tools").joinpath("sh", f"{name}.sh").read_text()


def _script(call: ToolRequest, program: str, path: str, variables: Mapping[str, str | int], *, writes: bool) -> bytes:
    policy = call.policy
    roots = (call.place.workspace, *policy.file_roots, *(() if writes else policy.read_roots))
    lines = [f"path={quote(absolute(call, path))}", "set -- " + " ".join(map(quote, roots))]
    lines += [f"{name}={quote(str(value))}" for name, value in variables.items()]
    return os.fsencode("\n".join([*lines, _program("resolve"), _program(program)]))
