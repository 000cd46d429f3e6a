"""Run a program of ``sh/`` in a slot; it resolves the path there, with the rules of the slot's
kernel.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Mapping
from importlib import resources

from hyperruntime.pool.tools.tool import ToolProblemError, ToolRequest
from hyperruntime.spec import ExecResult

_LIMIT_BYTES = 64 * 1024
# By exit code of the programs in sh/: a word for metadata["reason"], and a sentence for the model.
_REASONS = {
    80: (
        "workspace",
        "the workspace {workspace} no longer exists; create it again with bash and the workdir '/'",
    ),
    81: ("outside", "{path} is outside the workspace {workspace}; give a path in it"),
    82: ("missing", "{path} does not exist"),
    83: ("directory", "{path} is a directory; give a file"),
    84: ("special", "{path} is a device, a pipe or a socket; give a regular file"),
    85: ("denied", "{path} cannot be opened: permission denied"),
    86: ("links", "{path} leads through too many symbolic links"),
    87: ("links", "{path} is a symbolic link, and the image has no readlink to follow it"),
    88: ("unwritten", "{path} could not be written: {why}"),
    89: ("torn", "{path} was not written: its content arrived incomplete; try again"),
    90: ("no directory", "{path} is not a directory"),
    91: ("program", "the image lacks a program that this tool needs: {why}"),
    92: ("partial", "the archive of {path} is incomplete: {why}"),
    93: ("pattern", "invalid pattern: {why}"),
    94: ("exists", "{path} already exists"),
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
    timeout_s: float | None = None,
) -> ExecResult:
    """Run a program of ``sh/`` on a path of the slot, and return its result.

    Args:
        call: the call, for its slot, policy and remaining time.
        program: name of the file without ``.sh``.
        path: absolute, or relative to the workspace; any characters but NUL.
        variables: shell variables that the program reads.
        writes: whether the program writes, so that a path in ``read_roots`` is refused.
        data: its standard input.
        on_stdout: receives its standard output; without it the result holds the first 64 KiB.
        timeout_s: time limit in seconds; None for the remaining time of the call.

    Raises:
        ToolProblemError: the path is refused, or the program failed; the message says why.
    """

    def take(stream: str, chunk: bytes) -> None:
        if on_stdout is not None and stream == "stdout":
            on_stdout(chunk)

    roots = (
        call.slot_exec.workspace,
        *call.policy.file_roots,
        *(() if writes else call.policy.read_roots),
    )
    lines = [
        f"path={shlex.quote(absolute(call, path))}",
        "set -- " + " ".join(map(shlex.quote, roots)),
    ]
    lines += [f"{name}={shlex.quote(str(value))}" for name, value in (variables or {}).items()]
    result = await call.slot_exec.aexec(
        ["sh", "-c", os.fsencode("\n".join([*lines, _program("resolve"), _program(program)]))],
        workdir="/",
        timeout_s=timeout_s or call.remaining_s(),
        input=data,
        on_output=take,
        output_limit_bytes=_LIMIT_BYTES,
    )
    if result.timed_out:
        raise ToolProblemError(f"not finished within {call.timeout_s:g} s", timed_out=True)
    if result.exit_code != 0:
        why = result.stderr.decode(errors="replace").strip()[-500:].replace("\n", "; ")
        reason, sentence = _REASONS.get(
            result.exit_code, ("failed", "{path}: exit code {code}: {why}")
        )
        shown = {
            "path": repr(show(path)),
            "workspace": call.slot_exec.workspace,
            "code": result.exit_code,
        }
        raise ToolProblemError(
            sentence.format(**shown, why=why or "no reason was given"), reason=reason
        )
    return result


def show(path: str) -> str:
    """Return a path as valid Unicode text; other bytes become U+FFFD."""
    return os.fsencode(path).decode(errors="replace")


def absolute(call: ToolRequest, path: str) -> str:
    """Return an absolute path without empty parts and single dots; ``..`` stays, for the kernel to
    resolve.

    Args:
        call: the call, for its workspace.
        path: absolute, or relative to the workspace.

    Raises:
        ToolProblemError: the path is empty or holds NUL.
    """
    if not path or "\0" in path:
        raise ToolProblemError("a path must not be empty and cannot hold a NUL character")
    whole = path if path.startswith("/") else f"{call.slot_exec.workspace}/{path}"
    return "/" + "/".join(part for part in whole.split("/") if part not in ("", "."))


@functools.cache
def _program(name: str) -> str:
    return resources.files("hyperruntime.pool.tools").joinpath("sh", f"{name}.sh").read_text()
