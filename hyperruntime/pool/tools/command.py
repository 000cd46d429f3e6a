"""The tools ``bash`` and ``bash_stateful``: run a command text of any size in bash."""

from __future__ import annotations

import os

from hyperruntime.errors import ExecLostError, ExecStartError, WorkdirNotFoundError
from hyperruntime.exec.streams import split_kept, whole_end, whole_start
from hyperruntime.pool.tools.tool import Param, Tool, ToolProblemError, ToolRequest
from hyperruntime.pool_values.results import ExecutionResult
from hyperruntime.spec import ExecResult

# The text is not on the command line: other slots can list command lines, and `pkill -f` with a
# word of the text would kill this shell. A short text is a variable, which costs no stream; a long
# one comes first on standard input.
# the kernel allows 128 KiB, see execve(2), MAX_ARG_STRLEN
_VARIABLE = "HYPERRUNTIME_TEXT"
_VARIABLE_BYTES = 64 * 1024
_RUN = f'eval "unset -v {_VARIABLE}; ${_VARIABLE}"'
_RUN_LONG = (
    'IFS= LC_ALL=C read -r -N "$1" _hr_text || [ "$1" = 0 ] || exit 126; [ -n "$2" ] || exec '
    '</dev/null; shift 2; eval "unset -v _hr_text; $_hr_text"'
)
_UTF8_BYTES = 4


async def run_bash(call: ToolRequest) -> ExecutionResult:
    """Run a command in a new bash and return its result."""
    text = _text(call)
    given = None if call.args["stdin"] is None else os.fsencode(call.args["stdin"])
    args, env, source = bash_command(text, given)
    try:
        result = await call.slot_exec.aexec(
            args,
            timeout_s=call.remaining_s(),
            workdir=call.args["workdir"],
            env=env,
            input=source,
            output_limit_bytes=kept_bytes(call.policy.output_chars),
        )
    except WorkdirNotFoundError as error:
        raise ToolProblemError(str(error)) from None
    if result.not_executed:
        raise ToolProblemError(
            "the image has no bash, which this tool needs; use an image with bash", returncode=127
        )
    return to_result(call, result)


def bash_command(
    text: bytes, given: bytes | None
) -> tuple[list[str], dict[str, str], bytes | None]:
    """Return the arguments, the variables and the input with which a new bash runs a text of any
    length.

    Args:
        text: the text, without NUL.
        given: its standard input; None means an empty one.
    """
    bash = ["bash", "--noprofile", "--norc", "-c"]
    if len(text) <= _VARIABLE_BYTES:
        return [*bash, _RUN, "bash"], {_VARIABLE: os.fsdecode(text)}, given
    has_input = "" if given is None else "1"
    return [*bash, _RUN_LONG, "bash", str(len(text)), has_input], {}, text + (given or b"")


async def run_stateful(call: ToolRequest) -> ExecutionResult:
    """Run a command in the slot's persistent bash and return its result."""
    text = _text(call)
    given = call.args["stdin"]
    try:
        result = await call.slot_exec.tool_shell().arun(
            text,
            timeout_s=call.remaining_s(),
            input=None if given is None else os.fsencode(given),
            output_limit_bytes=kept_bytes(call.policy.output_chars),
        )
    except (ExecLostError, ExecStartError) as error:
        await call.slot_exec.close()
        raise ToolProblemError(
            f"{error}; the next call gets a new shell", returncode=None
        ) from error
    return to_result(call, result)


def _text(call: ToolRequest) -> bytes:
    text = os.fsencode(call.args["command"])
    if b"\0" in text:
        raise ToolProblemError(
            "a command cannot hold a NUL character; write such data with write_file"
        )
    return text


def to_result(call: ToolRequest, result: ExecResult) -> ExecutionResult:
    """Return the result of a command: its streams as shown to the model, its exit code, and an
    error if it failed.

    Args:
        call: the call, for its timeout and policy.
        result: how the command ended, with at most :func:`kept_bytes` of each stream.
    """
    out, out_cut = show_output(result.stdout, call.policy.output_chars)
    err, err_cut = show_output(result.stderr, call.policy.output_chars)
    error = f"the command ended with exit code {result.exit_code}" if result.exit_code else ""
    if result.timed_out:
        error = (
            f"the command timed out after {call.timeout_s:g} s; it and all processes that it "
            "started were ended"
        )
    between = "" if not out or out.endswith("\n") else "\n"
    return ExecutionResult(
        success=result.exit_code == 0,
        output=f"{out}{between}[stderr]\n{err}" if err else out,
        error=error,
        exit_code=result.exit_code,
        stdout=out,
        stderr=err,
        timed_out=result.timed_out,
        truncated=out_cut or err_cut,
        metadata={"returncode": result.exit_code},
    )


def kept_bytes(limit_chars: int) -> int:
    """Return how many bytes of a stream an exec must keep for :func:`show_output`, half at each
    end.
    """
    return 2 * _UTF8_BYTES * limit_chars


def show_output(data: bytes, limit_chars: int) -> tuple[str, bool]:
    """Return the text for the model, and whether it is truncated; invalid UTF-8 becomes U+FFFD.

    Args:
        data: the stream as an exec returns it, which keeps :func:`kept_bytes` of it: the head, a
            line with the number of dropped bytes, and the tail.
        limit_chars: of a longer text, the first and the last half of so many characters are kept.
    """
    half = kept_bytes(limit_chars) // 2
    if len(data) > 2 * half and (parts := split_kept(data, 2 * half)):
        head_bytes, dropped, tail_bytes = parts
        total = len(head_bytes) + dropped + len(tail_bytes)
    elif len(text := data.decode(errors="replace")) <= limit_chars:
        return text, False
    else:
        head_bytes = whole_end(data[:half])
        tail_bytes = whole_start(data[-half:])
        total = len(data)
    tail_chars = limit_chars // 2
    head = head_bytes.decode(errors="replace")[: limit_chars - tail_chars]
    tail = tail_bytes.decode(errors="replace")
    tail = tail[len(tail) - tail_chars :]
    missing = total - len(head.encode()) - len(tail.encode())
    return f"{head}\n[... {max(missing, 1)} bytes are not shown ...]\n{tail}", True


_COMMAND = Param("command", str, "bash code of one or more lines", required=True)
_TIMEOUT = Param("timeout", float, "seconds after which the command and its processes are ended")
_STDIN = Param("stdin", str, "standard input; empty by default")

BASH = Tool(
    name="bash",
    description=(
        "Run a command in bash, in the workspace. Each call starts a new shell: files are kept, "
        "the working directory and variables are not. Returns standard output, then standard "
        "error, and the exit code. To keep a process running, start it with `command > log 2>&1 "
        "&`."
    ),
    params=(
        _COMMAND,
        _TIMEOUT,
        Param("workdir", str, "working directory: absolute, or relative to the workspace"),
        _STDIN,
    ),
    run=run_bash,
)

BASH_STATEFUL = Tool(
    name="bash_stateful",
    description=(
        "Run a command in a persistent bash: working directory, variables, functions and "
        "background jobs are kept for the next call. Returns standard output, then standard "
        "error, and the exit code. After a timeout the shell continues in its state before the "
        "command."
    ),
    params=(_COMMAND, _TIMEOUT, _STDIN),
    run=run_stateful,
    hidden=True,
)
