"""The program that merges layers into one, and compares stacks of them.

``unshare --user ... python -I -S merging.py merge TARGET LAYER... -- LOWER...`` prints how many it
merged; ``... compare OLD... -- NEW...`` prints a line of JSON for each change. The first layer is
the highest. It runs as root of a user namespace, because files may have subordinate ids. It imports
the standard library only.

Layers of ``fuse-overlayfs``, whose marks are names of files, have a file :data:`FUSE` beside them.

Source: the kernel's overlayfs.rst ("whiteouts and opaque directories", "userxattr").
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress

_PARENT_DEATH_SIGNAL = 1
_OWN = "user.overlay."
_ESCAPED = "user.overlay.overlay."  # how an overlay keeps such names of its users
_OPAQUE = "user.overlay.opaque"
_WHITEOUT = "user.overlay.whiteout"
FUSE = "of-fuse-overlayfs"
_FUSE_OWN = "user.fuseoverlayfs."
_FUSE_HIDES = ".wh."
_FUSE_OPAQUE = ".wh..wh..opq"
_MOST_DEPTH = 10_000  # a path has at most 4096 bytes
_CHUNK_BYTES = 1 << 20
_INODE_BYTES = 256
_COPY_BY_HAND = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
by_fuse = False  # whether the layers are those of fuse-overlayfs


def is_of_fuse(layer: str) -> bool:
    """Return whether a layer is one of ``fuse-overlayfs``."""
    return os.path.exists(f"{os.path.dirname(layer)}/{FUSE}")


class Node:
    """What a stack of layers has under one name.

    Attributes:
        paths: its directories, the highest first; else the one path that counts.
        is_closed: whether nothing of lower layers shows through.
        is_hidden: whether the highest layer removes the name.
    """

    def __init__(self, path: str, *, is_closed: bool, is_hidden: bool) -> None:
        """Begin with the highest layer that has the name."""
        self.paths = [path]
        self.is_closed = is_closed
        self.is_hidden = is_hidden


def nodes(stack: list[str]) -> dict[str, Node]:
    """Return what the directories of a stack have, by name."""
    found: dict[str, Node] = {}
    for folder in stack:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_mark = by_fuse and entry.name.startswith(_FUSE_HIDES)
                name = entry.name.removeprefix(_FUSE_HIDES) if is_mark else entry.name
                node = found.get(name)
                if node is not None and node.is_closed:
                    continue
                is_directory = entry.is_dir(follow_symlinks=False)
                is_closed = not is_directory or _is_opaque(entry.path)
                if node is None:
                    hidden = is_mark or (not is_directory and _is_whiteout(entry))
                    found[name] = Node(entry.path, is_closed=is_closed, is_hidden=hidden)
                else:
                    node.is_closed = is_closed
                    if is_directory:
                        node.paths.append(entry.path)
    return found


def _is_opaque(path: str) -> bool:
    if by_fuse and os.path.lexists(f"{path}/{_FUSE_OPAQUE}"):
        return True
    try:
        return os.getxattr(path, _OPAQUE) == b"y"
    except OSError:
        return False


def _is_whiteout(entry: os.DirEntry[str]) -> bool:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISREG(status.st_mode) and status.st_size == 0:
        return _WHITEOUT in os.listxattr(entry.path)
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def merge(
    stack: list[str], lower: list[str], target: str, links: dict[tuple[int, int], str]
) -> None:
    """Copy what the directories of a stack have into one.

    Only whiteouts that hide something stay: the kernel would list others.

    Args:
        stack: the directories, the highest first.
        lower: those that the new one lies over; without any, it is a tree of its own.
        target: an existing empty directory.
        links: where files with more than one name were copied to.
    """
    below = nodes(lower)
    for name, node in nodes(stack).items():
        hides = _shown(below.get(name))
        source = node.paths[0]
        made = f"{target}/{name}"
        status = os.lstat(source)
        if node.is_hidden:
            if hides and by_fuse:
                _write_mark(f"{target}/{_FUSE_HIDES}{name}")
            elif hides:
                os.mknod(made, stat.S_IFCHR, 0)
            continue
        key = (status.st_dev, status.st_ino)
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(made, 0o700)
            merge(node.paths, [] if node.is_closed else _folders(hides), made, links)
            if node.is_closed and _folders(hides):
                if by_fuse:
                    _write_mark(f"{made}/{_FUSE_OPAQUE}")
                else:
                    os.setxattr(made, _OPAQUE, b"y")
        elif key in links:
            os.link(links[key], made, follow_symlinks=False)
            continue
        else:
            _copy(source, status, made)
            if status.st_nlink > 1:
                links[key] = made
        _stamp(source, status, made)


def _write_mark(path: str) -> None:
    with open(path, "xb"):
        pass


def _copy(source: str, status: os.stat_result, made: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), made)
    elif stat.S_ISREG(status.st_mode):
        with open(source, "rb") as old, open(made, "xb") as new:
            _copy_data(old.fileno(), new.fileno(), status.st_size)
    else:
        os.mknod(made, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)


def _copy_data(old: int, new: int, size: int) -> None:
    """Copy a file; holes stay holes, and blocks are shared where the file system can."""
    os.truncate(new, size)
    end = 0
    while end < size:
        try:
            at = os.lseek(old, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                return
            raise
        end = os.lseek(old, at, os.SEEK_HOLE)
        while at < end:
            at += _copy_some(old, new, at, end - at)


def _copy_some(old: int, new: int, at: int, count: int) -> int:
    try:
        if copied := os.copy_file_range(old, new, count, at, at):
            return copied
    except OSError as error:
        if error.errno not in _COPY_BY_HAND:
            raise
    return os.pwrite(new, os.pread(old, min(count, _CHUNK_BYTES), at), at)


def _stamp(source: str, status: os.stat_result, made: str) -> None:
    """Give a file the owner, the attributes, the mode and the times of another one."""
    os.chown(made, status.st_uid, status.st_gid, follow_symlinks=False)
    for name, value in _attributes(source).items():
        try:
            os.setxattr(made, name, value, follow_symlinks=False)
        except OSError:
            # labels of a security module are its own matter
            if not name.startswith("security.") or name == "security.capability":
                raise
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(made, stat.S_IMODE(status.st_mode))
    os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def _attributes(path: str) -> dict[str, bytes]:
    """Return the attributes of a file, without those by which an overlay works."""
    found = {}
    for name in os.listxattr(path, follow_symlinks=False):
        if name.startswith(_ESCAPED) or not name.startswith((_OWN, _FUSE_OWN)):
            with suppress(OSError):
                found[name] = os.getxattr(path, name, follow_symlinks=False)
    return found


def changes(old: list[str], new: list[str], at: str = "") -> Iterator[tuple[str, str]]:
    """Yield the kind and the path of each difference between two stacks of directories.

    Args:
        old: the directories of one stack, the highest first.
        new: those of the other.
        at: their path in the container.
    """
    before = nodes(old)
    after = nodes(new)
    for name in sorted(before.keys() | after.keys()):
        was = _shown(before.get(name))
        becomes = _shown(after.get(name))
        if was == becomes:
            continue
        path = f"{at}/{name}"
        if not was:
            yield "added", path
        elif not becomes:
            yield "removed", path
        elif not _are_same(was[0], becomes[0]):
            yield "changed", path
        yield from changes(_folders(was), _folders(becomes), path)


def _shown(node: Node | None) -> list[str]:
    return [] if node is None or node.is_hidden else node.paths


def _folders(paths: list[str]) -> list[str]:
    return paths if paths and stat.S_ISDIR(os.lstat(paths[0]).st_mode) else []


def _are_same(first: str, second: str) -> bool:
    """Return whether two files are equal, or two directories but for what is in them."""
    one = os.lstat(first)
    two = os.lstat(second)
    if (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino):
        return True
    if _facts(one) != _facts(two) or _attributes(first) != _attributes(second):
        return False
    if stat.S_ISLNK(one.st_mode):
        return os.readlink(first) == os.readlink(second)
    return not stat.S_ISREG(one.st_mode) or _have_same_bytes(first, second)


def _facts(status: os.stat_result) -> tuple[int, ...]:
    found = (status.st_mode, status.st_uid, status.st_gid, status.st_rdev)
    if stat.S_ISDIR(status.st_mode):
        return found
    return (*found, status.st_size, status.st_mtime_ns)


def _have_same_bytes(first: str, second: str) -> bool:
    with open(first, "rb") as one, open(second, "rb") as two:
        while chunk := one.read(_CHUNK_BYTES):
            if chunk != two.read(_CHUNK_BYTES):
                return False
    return True


def without_large(stack: list[str]) -> list[str]:
    """Return a stack of layers without the lowest ones that have more than all above together."""
    sizes = [_size(one) for one in stack]
    while len(sizes) > 2 and sizes[-1] > sum(sizes[:-1]):
        sizes.pop()
    return stack[: len(sizes)]


def _size(path: str) -> int:
    """Return about how many bytes a layer takes."""
    with os.scandir(path) as entries:
        return _INODE_BYTES + sum(
            _size(one.path)
            if one.is_dir(follow_symlinks=False)
            else _INODE_BYTES + one.stat(follow_symlinks=False).st_blocks * 512
            for one in entries
        )


def _main() -> None:
    # with the process that wants it; an owner that was killed leaves its rest to its guard
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    sys.setrecursionlimit(_MOST_DEPTH)
    verb, *words = sys.argv[1:]
    between = words.index("--")
    first = words[:between]
    second = words[between + 1 :]
    try:
        if verb != "compare":
            target, *stack = first
            if verb == "merge-some":
                stack = without_large(stack)
            os.mkdir(target, 0o700)
            if by_fuse:
                _write_mark(f"{os.path.dirname(target)}/{FUSE}")
            merge(stack, [*first[len(stack) + 1 :], *second], target, {})
            _stamp(stack[0], os.lstat(stack[0]), target)
            print(len(stack))
        else:
            for change in changes(first, second):
                print(json.dumps(change))
    except OSError as error:
        sys.exit(f"{error.filename or 'a layer'}: {error.strerror}")


if __name__ == "__main__":
    by_fuse = any(map(is_of_fuse, sys.argv[2:]))
    _main()
