"""Copy what an agent wrote out of a directory that is not to be trusted.

Only regular files are copied, through descriptors that follow no link; what is too large or too many stays behind.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hyperruntime.errors import PatchError
from hyperruntime.git.change_rules import FILE, PROGRAM
from hyperruntime.git.worktree import WorkTree
from hyperruntime.storage.atomic import write_file
from hyperruntime.units import MIB

PATCH_LIMIT = 64 * MIB
_MAX_FILES = 10_000
_MAX_FILE_BYTES = 16 * MIB
_MAX_BYTES = 128 * MIB


def copy_files(source: Path, target: Path, *, below: str = "", keep: bool = False) -> int:
    """Copy the regular files of a directory; return how many.

    Args:
        source: a directory of ours that the agent could write in, but not replace.
        target: made where there is anything to copy.
        below: a directory in ``source`` that alone is copied; an agent may have put a link in its place.
        keep: whether a file that is there already stays.

    Raises:
        StorageError: a file cannot be written.
    """
    prefix = os.fsencode(below) + b"/" if below else b""
    copied, left = 0, _MAX_BYTES
    try:
        with WorkTree(source) as tree:
            for path, found in sorted(tree.found.items()):
                if not path.startswith(prefix) or found.mode not in (FILE, PROGRAM):
                    continue
                if found.size > min(_MAX_FILE_BYTES, left):
                    continue
                place = target / os.fsdecode(path.removeprefix(prefix))
                if copied >= _MAX_FILES or (keep and place.exists()):
                    continue
                left -= _copy(tree, path, place, min(_MAX_FILE_BYTES, left))
                copied += 1
    except PatchError:
        return copied
    return copied


def read_file(folder: Path, name: bytes, limit: int) -> bytes | None:
    """Return the content of a regular file directly below a directory, or None where there is none.

    Raises:
        PatchError: it has more than ``limit`` bytes, or is no regular file.
    """
    path = os.path.join(os.fsencode(folder), name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PatchError(f"{os.fsdecode(name)} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PatchError(f"{os.fsdecode(name)} is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise PatchError(f"{os.fsdecode(name)} has more than {limit} bytes")
    return data


def read_below(folder: Path, path: str, limit: int) -> bytes:
    """Return the content of a regular file anywhere below a directory that an agent could write in.

    Raises:
        PatchError: there is none, or it has more than ``limit`` bytes.
    """
    with WorkTree(folder) as tree:
        found = tree.found.get(os.fsencode(path))
        if found is None or found.mode not in (FILE, PROGRAM):
            raise PatchError(f"there is no file {path}")
        try:
            data = tree.read(os.fsencode(path), limit)
        except OSError as error:
            raise PatchError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise PatchError(f"{path} has more than {limit} bytes")
    return data


def _copy(tree: WorkTree, path: bytes, place: Path, limit: int) -> int:
    try:
        data = tree.read(path, limit)
    except OSError:
        return 0
    if len(data) <= limit:
        write_file(place, data)
    return len(data)
