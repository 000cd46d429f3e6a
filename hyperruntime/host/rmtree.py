"""Remove directory trees of any depth with untrusted content."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress

from hyperruntime.concurrency.closing import closing_descriptor

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 50  # levels that are open at the same time


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a directory tree without following links; skip entries that cannot be removed.

    ``shutil.rmtree`` holds a descriptor and a stack frame for each level, so it fails on a tree of
    a few thousand levels, which ``mkdir`` and ``chdir`` can make although no path can name it. This
    function moves directories that are deeper than 50 levels to the top.
    """
    with suppress(OSError):
        with closing_descriptor(_open(path, None)) as root:
            while _empty(root, root, 0):
                pass
        os.rmdir(path)


def _empty(directory: int, root: int, depth: int) -> bool:
    """Remove the content of a directory; return whether directories were moved up to ``root`` and
    remain to remove.
    """
    moved = False
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        try:
            if not is_directory:
                os.unlink(name, dir_fd=directory)
            elif depth >= _MAX_DEPTH:
                os.rename(name, f".{secrets.token_hex(8)}", src_dir_fd=directory, dst_dir_fd=root)
                moved = True
            else:
                with closing_descriptor(_open(name, directory)) as below:
                    moved = _empty(below, root, depth + 1) or moved
                os.rmdir(name, dir_fd=directory)
        except OSError:
            continue
    return moved


def _open(path: str | os.PathLike[str], directory: int | None) -> int:
    """Open a directory, and let its owner change it, which the program that made it may have
    forbidden.
    """
    try:
        opened = os.open(path, _DIRECTORY, dir_fd=directory)
    except PermissionError:
        with closing_descriptor(os.open(path, _DIRECTORY | os.O_PATH, dir_fd=directory)) as found:
            # never another file, as a path might be; proc(5)
            os.chmod(f"/proc/self/fd/{found}", stat.S_IRWXU)
        return os.open(path, _DIRECTORY, dir_fd=directory)
    with suppress(OSError):  # it belongs to another user
        os.fchmod(opened, stat.S_IRWXU)
    return opened
