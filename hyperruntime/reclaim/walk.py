"""Give a tree that a container wrote to its user, and make it harmless.

The module is also a program, because only a new process can enter a user namespace:
``python -I -S walk.py SECONDS PATH...``.

Nothing in the tree is trusted. Each name is looked up in an open directory and no link is followed,
so a container that still runs cannot lead the walk out of the tree. At any depth, only one
directory is kept open.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CAPABILITIES = "security.capability"
_NAMES_PER_LOOK = 1000

Inode = tuple[int, int]


class _MovedError(Exception):
    """An entry was moved, or its mode changed, during the walk."""


def reclaim_tree(path: str, until: float) -> None:
    """Give a tree to the owner of its parent directory.

    The owner can then read, write and remove all of it. Set-user-ID and set-group-ID bits, file
    capabilities and the sticky bit of files are removed. A directory keeps its sticky bit, which
    only restricts access.

    Args:
        path: top of the tree.
        until: deadline in seconds of ``time.monotonic``.

    Raises:
        PermissionError: this process may not change an entry.
        TimeoutError: the deadline passed.
        OSError: the tree cannot be read for another reason.
    """
    holder = os.open(os.path.dirname(os.path.abspath(path)), _DIRECTORY)
    try:
        while True:
            try:
                return _Walk(os.fstat(holder).st_uid, until).run(holder, os.path.basename(path))
            except _MovedError:
                continue
    finally:
        os.close(holder)


class _Walk:
    """One walk through one tree."""

    def __init__(self, owner: int, until: float) -> None:
        self._owner = owner
        self._until = until

    def run(self, holder: int, name: str) -> None:
        """Walk the tree; go back to a parent directory through ``..``."""
        here = os.dup(holder)
        levels: list[tuple[Inode, list[str]]] = [(_inode(here), [name])]
        try:
            while levels:
                self._check_time()
                names = levels[-1][1]
                if names:
                    below = self._take(here, names.pop())
                    if below is not None:
                        here = _replace(here, below)
                        levels.append((_inode(here), self._names(here)))
                else:
                    levels.pop()
                    if levels:
                        here = _replace(here, _above(here, levels[-1][0]))
        finally:
            os.close(here)

    def _names(self, directory: int) -> list[str]:
        names = []
        with os.scandir(directory) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) % _NAMES_PER_LOOK == 0:
                    self._check_time()
        return names

    def _take(self, directory: int, name: str) -> int | None:
        """Reclaim one entry; return a file descriptor if it is a directory."""
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if found.st_uid != self._owner:
                os.chown(name, self._owner, -1, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                return None
            if stat.S_ISREG(found.st_mode):
                self._drop_capabilities(directory, name)
                if not found.st_mode & 0o7000 and found.st_mode & 0o600 == 0o600:
                    return None
            return self._open_up(directory, name)
        except FileNotFoundError:
            return None  # removed during the walk

    def _open_up(self, directory: int, name: str) -> int | None:
        """Set the mode of an entry that is not a link; return a file descriptor if it is a
        directory.
        """
        handle = os.open(name, _HANDLE, dir_fd=directory)
        try:
            mode = os.fstat(handle).st_mode
            if stat.S_ISLNK(mode):
                raise _MovedError
            is_directory = stat.S_ISDIR(mode)
            kept, given = (0o1777, 0o700) if is_directory else (0o777, 0o600)
            wanted = stat.S_IMODE(mode) & kept | given
            if wanted != stat.S_IMODE(mode):
                # not by name: the name may belong to another file by now
                os.chmod(f"/proc/self/fd/{handle}", wanted)
            return _reopen(handle) if is_directory else None
        finally:
            os.close(handle)

    def _drop_capabilities(self, directory: int, name: str) -> None:
        path = f"/proc/self/fd/{directory}/{name}"
        try:
            os.getxattr(path, _CAPABILITIES, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.ENOTSUP, errno.ENOENT):
                return
            # capabilities that are not valid in this user namespace
            if error.errno != errno.EOVERFLOW:
                raise
        # Any chown, even to the same owner, removes capabilities; see chown(2) and capabilities(7).
        os.chown(name, self._owner, -1, dir_fd=directory, follow_symlinks=False)

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise TimeoutError("it holds too many files for the time that was left")


def _inode(descriptor: int) -> Inode:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new


def _reopen(handle: int) -> int:
    """Reopen a directory for listing, once its owner may enter it."""
    try:
        return os.open(f"/proc/self/fd/{handle}", _DIRECTORY & ~os.O_NOFOLLOW)
    except PermissionError:
        raise _MovedError from None  # the container changed the mode again


def _above(directory: int, expected: Inode) -> int:
    """Open the parent directory, and check that it is the expected one."""
    try:
        above = os.open("..", _DIRECTORY, dir_fd=directory)
    except (FileNotFoundError, PermissionError):
        raise _MovedError from None
    if _inode(above) != expected:
        os.close(above)
        raise _MovedError
    return above


def main() -> None:
    """Reclaim the trees on the command line; the last line on stderr is the error."""
    until = time.monotonic() + float(sys.argv[1])
    try:
        for path in sys.argv[2:]:
            reclaim_tree(path, until)
    except OSError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
