"""Run git isolated from its environment; no other module of the host runs it.

Git reads no configuration of the user or the machine and runs no hook, filter, pager or helper of a
repository. It connects to no other repository, except for a fetch that the caller means. It has a
deadline and limits of its memory and output, because a repository of a few kilobytes can hold
billions of files. It ends with this process. Identity and dates are fixed, so that the same content
always gives the same commit. Design: docs/design/loop.md#states-and-patches.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache

from hyperruntime.errors import RepositoryError, SpecError
from hyperruntime.git.change_rules import GONE, Change
from hyperruntime.host.inherited import shell_environment
from hyperruntime.host.keeper import run_kept
from hyperruntime.host.process import OutputLimitError, ProcessLimits, ProcessResult, overload
from hyperruntime.units import GIB

TIMEOUT_VARIABLE = "HYPERRUNTIME_GIT_TIMEOUT_S"
"""Environment variable of the user: the seconds that one git command may take on an idle
machine.
"""
DEFAULT_TIMEOUT_S = 600.0
NO_CONNECTIONS = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1"}
"""Variables with which git fetches nothing, not even an object that a partial clone lacks. Source:
git(1).
"""

_NAME = "hyperruntime"
_EMAIL = "hyperruntime@localhost"
_DATE = "946684800 +0000"
_CONFIG = (
    ("core.attributesFile", os.devnull),
    ("core.autocrlf", "false"),
    ("core.excludesFile", os.devnull),
    ("core.fileMode", "true"),
    ("core.fsmonitor", "false"),
    ("core.hooksPath", os.devnull),
    ("core.symlinks", "true"),
    ("gc.auto", "0"),
    ("protocol.ext.allow", "never"),
    ("safe.directory", "*"),
)
_VARIABLES = {
    **NO_CONNECTIONS,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_AUTHOR_DATE": _DATE,
    "GIT_AUTHOR_EMAIL": _EMAIL,
    "GIT_AUTHOR_NAME": _NAME,
    "GIT_COMMITTER_DATE": _DATE,
    "GIT_COMMITTER_EMAIL": _EMAIL,
    "GIT_COMMITTER_NAME": _NAME,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}

_MOST_OUTPUT_BYTES = GIB
_MOST_MEMORY_BYTES = 4 * GIB
_WITH_VALUE = ("-C", "-c", "--git-dir")


def git_environment(config: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """Return the complete environment of a git process; ``config`` overrides the repository's
    configuration.

    Source: git(1), "Environment Variables"; git-config(1), ``GIT_CONFIG_COUNT``.
    """
    kept = shell_environment(os.environ)
    environment = {name: value for name, value in kept.items() if not name.startswith("GIT_")}
    settings = (*_CONFIG, *config)
    environment |= _VARIABLES | {"GIT_CONFIG_COUNT": str(len(settings))}
    for at, (key, value) in enumerate(settings):
        environment |= {f"GIT_CONFIG_KEY_{at}": key, f"GIT_CONFIG_VALUE_{at}": value}
    return environment


class GitTimeoutError(RepositoryError, TimeoutError):
    """A git command ran past its deadline and was ended."""


def git_timeout_s() -> float:
    """Return the seconds that a git command may take now: more on a machine that has too much to
    do.

    Raises:
        SpecError: the variable ``HYPERRUNTIME_GIT_TIMEOUT_S`` is not a positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        asked = float(text or DEFAULT_TIMEOUT_S)
    except ValueError:
        asked = 0.0
    if not 0 < asked < float("inf"):
        raise SpecError(TIMEOUT_VARIABLE, text, "a positive number of seconds")
    return asked * overload()


def try_git(
    args: Sequence[str],
    *,
    input: bytes | None = None,  # noqa: A002 - the process seam's own word
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> ProcessResult:
    """Run git and return its result, even if it failed.

    Args:
        args: arguments of git.
        input: standard input.
        env: variables that override the fixed environment.
        timeout_s: seconds it may take; None for :func:`git_timeout_s`.

    Raises:
        GitTimeoutError: it took longer.
        RepositoryError: git is not installed, or it wrote too much.
    """
    limit_s, more = (
        (git_timeout_s(), f"; {TIMEOUT_VARIABLE} sets more")
        if timeout_s is None
        else (timeout_s, "")
    )
    try:
        return run_kept(
            ["git", *args],
            input=input,
            env=git_environment() | dict(env or {}),
            timeout_s=limit_s,
            limits=ProcessLimits(memory_bytes=_memory_bytes(), output_bytes=_MOST_OUTPUT_BYTES),
        )
    except FileNotFoundError:
        raise RepositoryError("git is not installed; install the package git") from None
    except OutputLimitError:
        why = f"git {_verb(args)} wrote more than {_MOST_OUTPUT_BYTES} bytes and was ended"
        raise RepositoryError(f"{why}; the repository holds too much") from None
    except TimeoutError:
        raise GitTimeoutError(
            f"git {_verb(args)} did not end within {limit_s:.0f} s and was ended{more}"
        ) from None


@cache
def _memory_bytes() -> int:
    """Return the memory that a process of git may take: at most half of this machine's."""
    return min(_MOST_MEMORY_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def git(
    args: Sequence[str],
    *,
    input: bytes | None = None,  # noqa: A002 - the process seam's own word
    env: Mapping[str, str] | None = None,
) -> bytes:
    """Run git and return its standard output.

    Args:
        args: arguments of git.
        input: standard input.
        env: variables that override the fixed environment.

    Raises:
        RepositoryError: as for :func:`try_git`, or git failed; the message holds git's error text.
    """
    return succeeded(args, try_git(args, input=input, env=env))


def succeeded(args: Sequence[str], result: ProcessResult) -> bytes:
    """Return the standard output of a git command.

    Args:
        args: its arguments.
        result: its result.

    Raises:
        RepositoryError: it failed; the message holds git's error text.
    """
    if result.exit_code != 0:
        raise RepositoryError(f"git {_verb(args)} failed: {result.error_text}")
    return result.stdout


def _verb(args: Sequence[str]) -> str:
    """Return the name of git's command; the values of ``-C`` and ``--git-dir`` come before it."""
    words = list(args)
    while words and words[0].startswith("-"):
        del words[: 2 if words[0] in _WITH_VALUE else 1]
    return words[0] if words else ""


def commit_stream(
    parent: str | None, changes: Sequence[Change], reference: str, message: str
) -> bytes:
    """Return the input of ``git fast-import`` that makes a commit, points a reference at it and
    prints its name.

    Args:
        parent: commit that the changes apply to; None for an empty tree.
        changes: the changed paths.
        reference: full name of the reference.
        message: commit message.

    Source: git-fast-import(1), "Input Format".
    """
    identity = f"{_NAME} <{_EMAIL}> {_DATE}".encode()
    text = message.encode()
    blobs = []
    lines = [b"commit " + reference.encode(), b"mark :1"]
    lines += [b"author " + identity, b"committer " + identity, b"data %d\n%s" % (len(text), text)]
    lines += [] if parent is None else [b"from " + parent.encode()]
    for mark, change in enumerate(changes, start=2):
        if change.data is not None:
            blobs += [b"blob", b"mark :%d" % mark, b"data %d\n%s" % (len(change.data), change.data)]
        name = change.blob if change.data is None else b":%d" % mark
        gone = change.mode == GONE
        lines.append((b"D " if gone else b"M %s %s " % (change.mode, name)) + _quote(change.path))
    return b"\n".join([*blobs, *lines, b"", b"get-mark :1", b"done", b""])


def _quote(path: bytes) -> bytes:
    plain = (
        bytes([byte]) if 32 < byte < 127 and byte not in b'"\\' else b"\\%03o" % byte
        for byte in path
    )
    return b'"' + b"".join(plain) + b'"'
