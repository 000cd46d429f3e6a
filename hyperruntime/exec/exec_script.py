"""Turn one exec into the shell code that a lane sources, and recognise what a shell says about a
program that it could not execute; pure, no I/O.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property

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
_MOST_MESSAGE_BYTES = 8192  # names of programs may be long
_NO_PROGRAM = 127
_REASONS = {
    b"Permission denied": "permission denied",
    b"Is a directory": "it is a directory",
    b"Not a directory": "a part of its path is not a directory",
    b"Exec format error": "it is not a program for this machine",
}


class ShellText(bytes):
    """The text of a command ``/bin/sh -c TEXT NAME ARG...`` that a lane runs in its own subshell.

    That saves the start of a shell. ``$0``, ``$$`` and variables that begin with ``_hr_`` are the
    lane's, so it is only for programs of this library.
    """


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
    def text(self) -> bytes | None:
        """The program that the lane runs itself; None if a program is to be executed."""
        return next((arg for arg in self.args[2:3] if isinstance(arg, ShellText)), None)

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
    error = b"&1" if request.merge_output else b'"$_hr_lane/e"'
    through_env = request.through_env
    if request.text is not None and not through_env:
        words = b" ".join(map(quote, request.args[4:]))
        lines += [b"exec 3<&- 4>&- 2>%s;set -- %s" % (error, words), request.text]
    else:
        args = (b"env", *through_env, *request.args) if through_env else request.args
        lines.append(b'exec 3<&- 4>&-;trap \'echo "%d failed" >"$_hr_lane/s"\' 0' % sequence)
        lines.append(b"exec %s 2>%s" % (b" ".join(map(quote, args)), error))
    lines[-1] += b') <%s >"$_hr_lane/o" 2>/dev/null' % source
    # On one line: after the status the host may overwrite the script, so the shell must have read
    # all of it.
    lines.append(b'echo "%d $?" >&4;return\n' % sequence)
    return b"\n".join(lines)


def quote(argument: str | bytes) -> bytes:
    """Return an argument quoted for a shell."""
    return b"'" + os.fsencode(argument).replace(b"'", b"'\\''") + b"'"


class StartFailure:
    """Recognises the message of a shell, or of env, that it could not execute the program of a
    request.

    The shell writes it where the program would write its errors, and names a line of our script in
    it. So the stream holds back what may be such a message until the end of the command is known.
    """

    def __init__(self, request: ExecRequest, lane_dir: str) -> None:
        """Prepare.

        Args:
            request: the command.
            lane_dir: directory of the lane in the container; its name is secret, and bash begins
                its messages with it.
        """
        self._request = request
        self._of_bash = os.fsencode(f"{lane_dir}/c: ")

    @cached_property
    def _forms(self) -> list[bytes]:
        """The beginnings of messages; made only if something is written, because most commands
        write no errors.
        """
        # of dash, of busybox
        forms = [b"hyperruntime: 1: exec: %s: ", b"hyperruntime: exec: line 1: %s: "]
        if self._request.through_env:  # of coreutils, of busybox
            forms += [
                b"env: '%s': ",
                b"env: \xe2\x80\x98%s\xe2\x80\x99: ",
                b"env: can't execute '%s': ",
            ]
        return [_numberless(form % self._request.args[0]) for form in forms]

    def may_be(self, said: bytes) -> bool:
        """Return whether the first bytes of a stream are such a message, or the beginning of
        one.
        """
        if len(said) > _MOST_MESSAGE_BYTES:
            return False
        begun = [(said, self._of_bash), *((_numberless(said), form) for form in self._forms)]
        return any(text.startswith(form) or form.startswith(text) for text, form in begun)

    def is_told(self, said: bytes) -> bool:
        """Return whether bash or env says that it failed; bash drops its traps before it tries to
        execute a file.

        Args:
            said: the first bytes of the stream, of a command that ended with exit code 126 or 127
                and wrote nothing else.
        """
        if said.startswith(self._of_bash):
            return True
        name = re.escape(self._request.args[0])
        # also typographic quotes
        pattern = rb"env: [^\n]*?(?:['\"`]|\xe2\x80\x98)%s(?:['\"]|\xe2\x80\x99): " % name
        return bool(self._request.through_env) and re.match(pattern, said) is not None

    def sentence(self, exit_code: int, said: bytes) -> bytes:
        """Return the line that the caller gets instead of such a message.

        Args:
            exit_code: 127 if the program was not found, else 126.
            said: the message.
        """
        program = repr(os.fsdecode(self._request.args[0]))
        why = next(
            (why for word, why in _REASONS.items() if word in said), "the container refuses it"
        )
        text = f"the program {program} cannot be executed in the container: {why}"
        if exit_code == _NO_PROGRAM:
            text = f"the container has no program {program}; check its name and PATH"
            if b"/" in self._request.args[0]:
                text = (
                    f"the container has no program {program}, or not the interpreter that its "
                    "first line names"
                )
        return f"hyperruntime: {text}\n".encode(errors="replace")


def _numberless(text: bytes) -> bytes:
    """Return a text with one digit for each number: the number of a line may be any."""
    return re.sub(rb"[0-9]+", b"1", text)
