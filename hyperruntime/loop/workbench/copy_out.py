"""Copy files out of an untrusted directory that an agent wrote.

Only regular files are copied, through file descriptors that follow no link; files above the limits
are skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

from hyperruntime.errors import PatchError
from hyperruntime.git.change_rules import FILE, PROGRAM
from hyperruntime.git.worktree import WorkTree
from hyperruntime.storage.atomic import write_file
from hyperruntime.storage.run_files import open_regular
from hyperruntime.units import MIB

PATCH_LIMIT = 64 * MIB
_MAX_FILES = 10_000
_MAX_FILE_BYTES = 16 * MIB
_MAX_BYTES = 128 * MIB


def copy_files(source: Path, target: Path, *, below: str = "", keep: bool = False) -> int:
    """Copy the regular files of a directory; return the number of copied files.

    If the directory cannot be read, for example because it has too many entries, copying stops
    without an error.

    Args:
        source: a directory that the agent could write to, but not replace.
        target: destination; made if there is a file to copy.
        below: copy only this directory below ``source``; it may be missing, or a link.
        keep: whether existing files in ``target`` are kept.

    Raises:
        StorageError: a file cannot be written.
    """
    prefix = os.fsencode(below) + b"/" if below else b""
    copied = 0
    left = _MAX_BYTES
    try:
        with WorkTree(source) as tree:
            for path, found in sorted(tree.found.items()):
                if not path.startswith(prefix) or found.mode not in (FILE, PROGRAM):
                    continue
                place = target / os.fsdecode(path.removeprefix(prefix))
                limit = min(_MAX_FILE_BYTES, left)
                if found.size > limit or copied >= _MAX_FILES or (keep and place.exists()):
                    continue
                try:
                    data = tree.read(path, limit)
                except OSError:
                    continue
                if len(data) <= limit:
                    write_file(place, data)
                    copied += 1
                left -= len(data)
    except PatchError:
        return copied
    return copied


def read_file(folder: Path, name: bytes, limit: int) -> bytes | None:
    """Return the content of a regular file in a directory, or None if it does not exist.

    Args:
        folder: the directory.
        name: name of the file, without a slash.
        limit: largest accepted size in bytes.

    Raises:
        PatchError: the file has more than ``limit`` bytes, is not a regular file, or cannot be
            read.
    """
    try:
        descriptor = open_regular(os.path.join(os.fsencode(folder), name))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PatchError(f"{os.fsdecode(name)} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise PatchError(f"{os.fsdecode(name)} has more than {limit} bytes")
    return data


def read_below(folder: Path, path: str, limit: int) -> bytes:
    """Return the content of a regular file below a directory that an agent could write to.

    Args:
        folder: the directory.
        path: path of the file, relative to ``folder``.
        limit: largest accepted size in bytes.

    Raises:
        PatchError: the file does not exist, has more than ``limit`` bytes, or cannot be read.
    """
    with WorkTree(folder) as tree:
        found = tree.found.get(os.fsencode(path))
        if found is None or found.mode not in (FILE, PROGRAM):
            raise PatchError(f"regular file {path} does not exist")
        try:
            data = tree.read(os.fsencode(path), limit)
        except OSError as error:
            raise PatchError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise PatchError(f"{path} has more than {limit} bytes")
    return data
