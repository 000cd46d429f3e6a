"""Run git isolated from its environment.

Git reads no configuration of the user or the machine and runs no hook, filter, pager or helper of a repository.
Identity and dates are fixed, so that the same content always gives the same commit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hyperruntime.errors import RepositoryError
from hyperruntime.git.change_rules import GONE, Change
from hyperruntime.host.inherited import shell_environment
from hyperruntime.host.process import ProcessResult, run_process

_NAME, _EMAIL, _DATE = "hyperruntime", "hyperruntime@localhost", "946684800 +0000"
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
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


def git_environment(config: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """Return the complete environment of a git process; ``config`` overrides the repository's configuration.

    Source: git(1), "Environment Variables"; git-config(1), ``GIT_CONFIG_COUNT``.
    """
    kept = shell_environment(os.environ)
    environment = {name: value for name, value in kept.items() if not name.startswith("GIT_")}
    settings = (*_CONFIG, *config)
    environment |= _VARIABLES | {"GIT_CONFIG_COUNT": str(len(settings))}
    for at, (key, value) in enumerate(settings):
        environment |= {f"GIT_CONFIG_KEY_{at}": key, f"GIT_CONFIG_VALUE_{at}": value}
    return environment


def try_git(
    args: Sequence[str],
    *,
    input: bytes | None = None,  # noqa: A002 - the process seam's own word
    env: Mapping[str, str] | None = None,
) -> ProcessResult:
    """Run git and return its result, even if it failed.

    Args:
        args: arguments of git.
        input: standard input.
        env: variables that override the fixed environment.

    Raises:
        RepositoryError: git is not installed.
    """
    try:
        return run_process(["git", *args], input=input, env=git_environment() | dict(env or {}))
    except FileNotFoundError:
        raise RepositoryError("git is not installed; install the package git") from None


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
        RepositoryError: git is not installed, or failed; the message holds git's error text.
    """
    result = try_git(args, input=input, env=env)
    if result.exit_code != 0:
        verb = next((arg for arg in args if not arg.startswith("-")), "")
        raise RepositoryError(f"git {verb} failed: {result.error_text}")
    return result.stdout


def commit_stream(parent: str | None, changes: Sequence[Change], reference: str, message: str) -> bytes:
    """Return the input of ``git fast-import`` that makes a commit, points a reference at it and prints its name.

    Args:
        parent: commit that the changes apply to; None for an empty tree.
        changes: the changed paths.
        reference: full name of the reference.
        message: commit message.

    Source: git-fast-import(1), "Input Format".
    """
    identity = f"{_NAME} <{_EMAIL}> {_DATE}".encode()
    text = message.encode()
    blobs, lines = [], [b"commit " + reference.encode(), b"mark :1"]
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
    plain = (bytes([byte]) if 32 < byte < 127 and byte not in b'"\\' else b"\\%03o" % byte for byte in path)
    return b'"' + b"".join(plain) + b'"'
