"""Turn one exec into the shell code that a lane sources; pure, no I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.exec.exec_marks import Mark
from hyperruntime.pickling import names_only
from hyperruntime.spec import check_env, check_inside_path

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that a shell sets, reads or refuses to assign. Sources: dash(1), bash(1) "Shell Variables",
# POSIX.1 sh.
_SPECIAL = frozenset(
    "_ IFS OPTIND OPTARG OPTERR LINENO PPID UID EUID GROUPS RANDOM SRANDOM SECONDS "
    "EPOCHSECONDS EPOCHREALTIME SHELLOPTS BASHOPTS BASH BASHPID DIRSTACK FUNCNAME "
    "FUNCNEST HISTCMD PIPESTATUS POSIXLY_CORRECT SHLVL PS1 PS2 PS4 ENV PWD OLDPWD "
    "CDPATH GLOBIGNORE EXECIGNORE TMOUT".split()
)
# An engine that mounts libraries of the host sets _hr_library_path to the LD_LIBRARY_PATH that
# finds them.
_LIBRARIES = b'[ -z "$_hr_library_path" ] || export LD_LIBRARY_PATH="$_hr_library_path"; unset _hr_library_path\n'
_MAX_VARIABLE_BYTES = 128 * 1024  # source: execve(2), MAX_ARG_STRLEN
_MAX_ENV_BYTES = 1024**2  # half of Linux's default limit for arguments and environment together


@attrs.frozen(kw_only=True)
class ExecRequest:
    """One validated command.

    Attributes:
        args: argv, as bytes to allow any file name.
        env: variables for this command only, in addition to the container's.
        workdir: working directory; None means the container's.
        has_input: whether it gets standard input; else that is empty.
        merge_output: whether its standard error goes to its standard output.
    """

    args: tuple[bytes, ...]
    env: Mapping[str, str] = attrs.field(repr=names_only, hash=False)
    workdir: str | None
    has_input: bool
    merge_output: bool = False

    @property
    def through_env(self) -> tuple[bytes, ...]:
        """The variables that only env(1) can set, as its arguments."""
        return tuple(
            os.fsencode(f"{name}={value}")
            for name, value in self.env.items()
            if not shell_keeps(name)
        )


def make_request(
    args: Sequence[str | bytes],
    *,
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    has_input: bool = False,
    merge_output: bool = False,
) -> ExecRequest:
    """Return a validated request.

    Args:
        args: argv, never a shell string.
        env: variables for this command only, in addition to the container's.
        workdir: absolute path in the container; None means the container's.
        has_input: whether it gets standard input.
        merge_output: whether its standard error goes to its standard output.

    Raises:
        SpecError: args is a string or empty, holds NUL, or does not begin with a program; env or
            workdir is malformed.
    """
    if isinstance(args, (str, bytes)):
        raise SpecError(
            "args",
            args,
            "a list of arguments, not a shell string; run shell code with ['sh', '-c', text]",
        )
    try:
        encoded = tuple(a if isinstance(a, bytes) else os.fsencode(a) for a in args)
    except (TypeError, UnicodeEncodeError):
        raise SpecError("args", args, "a list of str, bytes or paths") from None
    if not encoded or not encoded[0] or encoded[0].startswith(b"-"):
        raise SpecError("args", args, "a list that begins with the name or path of a program")
    if any(b"\0" in a for a in encoded):
        raise SpecError("args", args, "arguments without NUL")
    check_env("env", env or {})
    if workdir is not None:
        check_inside_path("workdir", workdir)
    return ExecRequest(
        args=encoded,
        env=dict(env or {}),
        workdir=workdir,
        has_input=has_input,
        merge_output=merge_output,
    )


def shell_keeps(name: str) -> bool:
    """Return whether a shell passes on a variable of this name unchanged; other variables go
    through env(1).
    """
    return (
        VARIABLE.fullmatch(name) is not None
        and name not in _SPECIAL
        and not name.startswith(("BASH_", "_hr_"))
    )


def export_script(env: Mapping[str, str]) -> bytes:
    """Return shell code that exports variables; their names must pass :func:`shell_keeps`.

    Raises:
        SpecError: the variables are too large for execve(2).
    """
    sizes = [len(os.fsencode(f"{name}={value}")) for name, value in env.items()]
    if max(sizes, default=0) >= _MAX_VARIABLE_BYTES or sum(sizes) > _MAX_ENV_BYTES:
        allowed = (
            "at most 128 KiB per variable and 1 MiB in all; this is more than a command line holds"
        )
        raise SpecError("env", "...", allowed)
    lines = [b"export %s=%s\n" % (name.encode(), quote(value)) for name, value in env.items()]
    return b"".join((*lines, _LIBRARIES))


def lane_script(
    request: ExecRequest, sequence: int, mark: Mark, *, announce: bool = False
) -> bytes:
    """Return the script that a lane sources to run a request.

    The command runs in a subshell that lowers a hard limit to the exec's mark. Every descendant
    inherits the mark, even if it changes its session, process group, parent or environment. The
    trap runs only if the program could not be executed; where bash drops it, ``StartFailure``
    knows. Warnings of the shell itself are dropped.

    Args:
        request: the command.
        sequence: number of the exec in its lane, repeated in its status lines.
        mark: mark of this exec.
        announce: whether to report that a process was started; a command with input always reports
            it.
    """
    started = b'echo "%d in" >&4' % sequence if request.has_input or announce else b""
    source = b'"$_hr_lane/i"' if request.has_input else b"/dev/null"
    lines = [b"(ulimit %s" % mark.options]
    if request.workdir is not None:
        lines.append(
            b'cd -- %s 2>/dev/null||{ echo "%d dir" >&4;exit 126;}'
            % (quote(request.workdir), sequence)
        )
    lines += [started] if started else []
    kept = {name: value for name, value in request.env.items() if shell_keeps(name)}
    lines += [b"export %s=%s" % (name.encode(), quote(value)) for name, value in kept.items()]
    args = (
        (b"env", *through_env, *request.args)
        if (through_env := request.through_env)
        else request.args
    )
    lines.append(b'exec 3<&- 4>&-;trap \'echo "%d failed" >"$_hr_lane/s"\' 0' % sequence)
    error = b"&1" if request.merge_output else b'"$_hr_lane/e"'
    words = b" ".join(map(quote, args))
    lines.append(b'exec %s 2>%s) <%s >"$_hr_lane/o" 2>/dev/null' % (words, error, source))
    # On one line: after the status the host may overwrite the script, so the shell must have read
    # all of it.
    lines.append(b'echo "%d $?" >&4;return\n' % sequence)
    return b"\n".join(lines)


def quote(argument: str | bytes) -> bytes:
    """Return an argument quoted for a shell."""
    return b"'" + os.fsencode(argument).replace(b"'", b"'\\''") + b"'"
