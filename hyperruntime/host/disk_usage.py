"""Measure from the host how much space a container's writable directories use.

The container's files are not trusted: no link is followed and no file is opened; unreadable entries
are reported.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator

import attrs

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.host.process import read_proc
from hyperruntime.host.process_tree import Namespace, members, tmpfs_bytes

LEAST_BYTES = 4096  # least size of each entry, because names and empty files also take space
_BLOCK = 512  # unit of st_blocks on every file system; source: inode(7)
_LARGE_BYTES = 1024**2  # large files are counted once even if they are unlinked during the count
_MAX_DEPTH = 200
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UPPER = re.compile(r"[ ,]upperdir=((?:[^,\\]|\\.)*)")
_OCTAL = re.compile(r"\\([0-7]{3})")


@attrs.frozen
class Use:
    """The result of a measurement.

    Attributes:
        used_bytes: size of the blocks of all files, at least ``LEAST_BYTES`` for each name.
        hidden: whether an entry could not be read.
    """

    used_bytes: int
    hidden: bool


def measure(tops: Iterable[str], namespace: Namespace | None, stop_at: int) -> Use:
    """Return the space used by directories, and by a container's memory file systems and deleted
    but open files.

    Args:
        tops: directories of the host.
        namespace: the container's processes, or None if they are not visible from here.
        stop_at: number of bytes after which the count may stop.
    """
    count = _Count(stop_at)
    for top in tops:
        count.add_top(top)
    if namespace is not None:
        count.used += tmpfs_bytes(namespace.tmpfs)
        count.devices |= {facts.st_dev for facts in _stats([f"/proc/{namespace.init}/root"])}
        for facts in _deleted_files(namespace):
            count.add_deleted(facts)
    return Use(count.used, count.hidden)


def overlay_layer(namespace: Namespace | None) -> str:
    """Return the host directory of a container's changes to its image (the overlay's upper layer);
    "" if unknown.
    """
    mounts = read_proc(namespace.init, "mountinfo") if namespace is not None else b""
    for line in os.fsdecode(mounts).splitlines():
        before, _, after = line.partition(" - ")
        upper = _UPPER.search(after)
        if before.split()[4:5] == ["/"] and upper is not None:
            path = _OCTAL.sub(lambda match: chr(int(match[1], 8)), upper[1]).replace("\\", "")
            return path if os.path.isdir(path) else ""
    return ""


class _Count:
    """A sum over directories that counts a file with several names once."""

    def __init__(self, stop_at: int) -> None:
        self.used = 0
        self.hidden = False
        self.devices: set[int] = set()
        self._stop_at = stop_at
        self._seen: set[tuple[int, int]] = set()

    def add_top(self, top: str) -> None:
        """Count everything below a directory of this user."""
        try:
            self._add_directory(os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), 0)
        except FileNotFoundError:
            return
        except OSError:
            self.hidden = True

    def add_deleted(self, facts: os.stat_result) -> None:
        """Count a deleted file if it is on a file system that the container can write."""
        if facts.st_dev in self.devices:
            self._add(facts)

    def _add_directory(self, descriptor: int, depth: int) -> None:
        with closing_descriptor(descriptor), os.scandir(descriptor) as entries:
            self.devices.add(os.fstat(descriptor).st_dev)
            for entry in entries:
                if self.used > self._stop_at:
                    return
                self._add_entry(entry, descriptor, depth)

    def _add_entry(self, entry: os.DirEntry[str], parent: int, depth: int) -> None:
        try:
            facts = entry.stat(follow_symlinks=False)
            self._add(facts)
            if not stat.S_ISDIR(facts.st_mode):
                return
            if depth >= _MAX_DEPTH:
                self.hidden = True
                return
            self._add_directory(os.open(entry.name, _DIRECTORY, dir_fd=parent), depth + 1)
        except FileNotFoundError:
            return  # removed meanwhile
        except OSError:
            self.hidden = True

    def _add(self, facts: os.stat_result) -> None:
        is_large = facts.st_blocks * _BLOCK >= _LARGE_BYTES
        if (facts.st_nlink != 1 or is_large) and not stat.S_ISDIR(facts.st_mode):
            key = (facts.st_dev, facts.st_ino)
            if key in self._seen:
                return
            self._seen.add(key)
        self.used += max(facts.st_blocks * _BLOCK, LEAST_BYTES)


def _deleted_files(namespace: Namespace) -> Iterator[os.stat_result]:
    """Yield the deleted files that a container's processes hold open."""
    for pid in members((namespace,))[namespace.inode]:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue  # gone, or of another user
        for facts in _stats(f"{folder}/{name}" for name in names):
            if facts.st_nlink == 0 and stat.S_ISREG(facts.st_mode):
                yield facts


def _stats(paths: Iterable[str]) -> Iterator[os.stat_result]:
    for path in paths:
        try:
            yield os.stat(path)
        except OSError:
            continue
