"""Write the files of a commit to a directory, without the attributes that they give each other.

An agent writes the ``.gitattributes`` files, and git needs exponential time for some of their
patterns. So git writes all other files, without seeing these; then they are written here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import attrs

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.errors import RepositoryError
from hyperruntime.git.change_rules import LINK, PROGRAM, SUBMODULE
from hyperruntime.git.command import git
from hyperruntime.storage.run_files import open_directory

_PATHSPEC = ":(glob)**/.gitattributes"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@attrs.frozen
class _File:
    """An entry of the index.

    Attributes:
        line: the entry, as ``git update-index`` reads it.
        mode: git's mode.
        blob: object name of its content.
        path: relative to the work tree.
    """

    line: bytes
    mode: bytes
    blob: bytes
    path: bytes


def write_files(commit: str, where: str, env: Mapping[str, str]) -> None:
    """Write the files of a commit to an empty directory, and the commit to the index.

    Args:
        commit: full name of the commit.
        where: the directory.
        env: environment variables that select the repository and its index.

    Raises:
        RepositoryError: git failed, or a file cannot be written.
    """
    there, env = ["-C", where], {**env, "GIT_WORK_TREE": where}
    git([*there, "read-tree", commit], env=env)
    files = _attribute_files(there, env)
    if files:
        names = b"".join(file.path + b"\0" for file in files)
        git([*there, "update-index", "--force-remove", "-z", "--stdin"], env=env, input=names)
    git([*there, "checkout-index", "--all", "--index"], env=env)
    if files:
        blobs = [file.blob for file in files]
        output = git(["cat-file", "--batch"], env=env, input=b"\n".join(blobs) + b"\n")
        try:
            for file, data in zip(files, split_batch(output, len(files)), strict=True):
                _write(where, file, data)
        except OSError as error:
            raise RepositoryError(
                f"cannot write the .gitattributes files to {where!r}: {error.strerror}"
            ) from error
        lines = b"".join(file.line + b"\0" for file in files)
        # Git would compare new files with the index, and use the attributes for it; so it must not
        # find the files.
        elsewhere = env["GIT_DIR"]
        blind = {**env, "GIT_WORK_TREE": elsewhere}
        git(["-C", elsewhere, "update-index", "-z", "--index-info"], env=blind, input=lines)


def split_batch(output: bytes, count: int) -> list[bytes]:
    """Return the contents in the output of ``git cat-file --batch``.

    Args:
        output: the output.
        count: number of the objects; all must exist.
    """
    contents = []
    at = 0
    for _ in range(count):
        end = output.index(b"\n", at)
        size = int(output[at:end].split()[2])
        contents.append(output[end + 1 : end + 1 + size])
        at = end + size + 2
    return contents


def _attribute_files(there: Sequence[str], env: Mapping[str, str]) -> list[_File]:
    listing = git(
        [*there, "ls-files", "--stage", "-z", "--", _PATHSPEC],
        env={**env, "GIT_LITERAL_PATHSPECS": "0"},
    )
    files = []
    for line in listing.split(b"\0")[:-1]:
        facts, _, path = line.partition(b"\t")
        mode, blob, _ = facts.split()
        if mode != SUBMODULE:
            files.append(_File(line, mode, blob, path))
    return files


def _write(where: str, file: _File, data: bytes) -> None:
    """Write a file below a directory; follow no link."""
    *directories, name = file.path.split(b"/")
    with (
        closing_descriptor(os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root,
        closing_descriptor(open_directory(root, directories, makes=True)) as parent,
    ):
        if file.mode == LINK:
            os.symlink(data, name, dir_fd=parent)
            return
        mode = 0o777 if file.mode == PROGRAM else 0o666
        with os.fdopen(os.open(name, _NEW_FILE, mode, dir_fd=parent), "wb") as new:
            new.write(data)
