"""Refuse a bare repository that holds more than this library writes: somebody else may have made it.

A run directory can come from anybody, and the configuration of a repository can name programs that git runs.
"""

from __future__ import annotations

import os
import re
import stat

from hyperruntime.errors import RepositoryError

# No conversion of file contents: info/attributes overrides every .gitattributes (gitattributes(5)).
RAW_ATTRIBUTES = "* -text -ident !eol !filter !diff !merge !working-tree-encoding !whitespace\n"

_MAX_BYTES = 4096
# The sections and values that `git init --bare` writes. Source: git-config(1).
_INIT = re.compile(
    r"\[core\]|\[extensions\]|repositoryformatversion = [01]|objectformat = sha(1|256)|bare = true"
    r"|(filemode|ignorecase|logallrefupdates|precomposeunicode|symlinks) = (true|false)"
)
_DIRECTORIES = ("", "info", "objects", "refs")
# Source: gitrepository-layout(5).
_FOREIGN = (
    "commondir", "config.worktree", "info/exclude", "info/grafts", "info/sparse-checkout", "objects/info/alternates",
)  # fmt: skip


def refuse_foreign_files(repository: str) -> None:
    """Check the files of a bare repository that change what git does; a missing repository passes.

    Args:
        repository: its path.

    Raises:
        RepositoryError: it has a setting, a file or a link that this library does not write.
    """
    if not os.path.lexists(repository):
        return
    for name in _DIRECTORIES:
        path = os.path.join(repository, name) if name else repository
        if os.path.lexists(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
            raise _foreign(repository, f"{name or 'it'} is not a directory")
    for name in _FOREIGN:
        if os.path.lexists(os.path.join(repository, name)):
            raise _foreign(repository, f"it has the file {name}")
    if (attributes := _read(repository, "info/attributes")) != RAW_ATTRIBUTES:
        raise _foreign(repository, f"its info/attributes is {attributes[:200]!r}")
    lines = [line.strip() for line in _read(repository, "config").splitlines()]
    if bad := next((line for line in lines if not _INIT.fullmatch(line)), None):
        raise _foreign(repository, f"its config has the line {bad[:200]!r}")
    if "bare = true" not in lines:
        raise _foreign(repository, "its config does not have the line 'bare = true'")


def _read(repository: str, name: str) -> str:
    """Return the text of a small regular file; "" if it does not exist."""
    try:
        descriptor = os.open(os.path.join(repository, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _foreign(repository, f"its {name} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _foreign(repository, f"its {name} is not a regular file")
        return file.read(_MAX_BYTES).decode(errors="replace")


def _foreign(repository: str, what: str) -> RepositoryError:
    return RepositoryError(
        f"{repository!r} was changed by another program: {what}; do not use a run from somebody you do not trust, "
        "or restore the file as `git init --bare` writes it"
    )
