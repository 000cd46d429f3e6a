"""Refuse a bare repository that holds more than this library writes: somebody else may have made
it.

A run directory can come from anybody, and the configuration of a repository can name programs that
git runs.
"""

from __future__ import annotations

import os
import re
import stat

from hyperruntime.errors import RepositoryError
from hyperruntime.storage.run_files import open_regular, read_at_most

# No conversion of file contents: info/attributes overrides every .gitattributes (gitattributes(5)).
RAW_ATTRIBUTES = "* -text -ident !eol !filter !diff !merge !working-tree-encoding !whitespace\n"

_MAX_BYTES = 4096
_SHOWN = 200
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
        raise _foreign(repository, f"its info/attributes is {attributes[:_SHOWN]!r}")
    lines = [text for line in _read(repository, "config").splitlines() if (text := line.strip())]
    if bad := next((line for line in lines if not _INIT.fullmatch(line)), ""):
        raise _foreign(repository, f"its config has the line {bad[:_SHOWN]!r}")
    if "bare = true" not in lines:
        raise _foreign(repository, "its config does not have the line 'bare = true'")


def refuse_links(repository: str) -> bool:
    """Check that a bare repository holds directories and regular files only; return whether it
    exists.

    Git writes through a link to where it leads, and waits for a named pipe. This reads each
    directory once. What other processes remove meanwhile is left out.

    Args:
        repository: its path.

    Raises:
        RepositoryError: it holds a link, a named pipe, a socket or a device, or a directory cannot
            be read.
    """
    if os.path.islink(repository):
        raise _foreign(repository, "it is not a directory")
    waiting = [repository]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        raise _foreign(
                            repository, f"its {_below(repository, entry.path)} is {_kind(entry)}"
                        )
        except FileNotFoundError:
            if directory == repository:
                return False
        except OSError as error:
            what = f"its {_below(repository, directory)} cannot be read: {error.strerror}"
            raise _foreign(repository, what) from error
    return True


def _below(repository: str, path: str) -> str:
    return repr(os.path.relpath(path, repository))[:_SHOWN]


def _kind(entry: os.DirEntry[str]) -> str:
    return "a link" if entry.is_symlink() else "not a regular file"


def _read(repository: str, name: str) -> str:
    """Return the text of a small regular file; "" if it does not exist."""
    try:
        with os.fdopen(open_regular(os.path.join(repository, name)), "rb") as file:
            return read_at_most(file, _MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _foreign(repository, f"its {name} cannot be read: {error.strerror}") from error


def _foreign(repository: str, what: str) -> RepositoryError:
    return RepositoryError(
        f"{repository!r} was changed by another program: {what}; do not use a run from somebody "
        "you do not trust, or restore the file as `git init --bare` writes it"
    )
