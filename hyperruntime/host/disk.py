"""Measure from the host how much space a container's writable directories use, and end it when it
exceeds its limit or the host's disk is almost full.

The container's files are not trusted: no link is followed and no file is opened; unreadable entries
are reported. No engine limits disk use on every machine: mounts are plain directories, and quotas
need root and a file system that supports them. One thread per container checks; a check is cheap
while the free space does not change. Between two checks a container can write more than its limit.
Design: docs/design/containers.md#disk.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import attrs

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.host.process import read_proc
from hyperruntime.host.process_tree import Namespace, members, parent_of, tmpfs_bytes
from hyperruntime.units import MIB, format_size

LEAST_BYTES = 4096  # least size of each entry, because names and empty files also take space
_BLOCK = 512  # unit of st_blocks on every file system; source: inode(7)
_LARGE_BYTES = 1024**2  # large files are counted once even if they are unlinked during the count
_MAX_DEPTH = 200
RESERVE_BYTES = 256 * MIB
_TICK_S = 0.1
_CALM_S = 1.0  # least time between two counts; shorter if much space was taken since the last one
_DUTY = 5  # a slow count is repeated after this many times its duration at the earliest
_RETURN_S = 3.0  # an ended container frees its space with a delay
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UPPER = re.compile(r"[ ,]upperdir=((?:[^,\\]|\\.)*)")
_MOUNT_NUMBER = re.compile(rb"^mnt_id:\s*(\d+)", re.M)
_OCTAL = re.compile(r"\\([0-7]{3})")

End = Callable[[str, str], None]


@attrs.frozen
class Use:
    """The result of a measurement.

    Attributes:
        used_bytes: size of the blocks of all files, at least ``LEAST_BYTES`` for each name.
        hidden: whether an entry could not be read.
    """

    used_bytes: int
    hidden: bool


NOTHING = Use(0, hidden=False)


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
        count.devices |= {facts.st_dev for facts in _stats([f"/proc/{namespace.visible}/root"])}
        for facts, is_on_root in _deleted_files(namespace):
            count.add_deleted(facts, is_on_root=is_on_root)
    return Use(count.used, count.hidden)


@attrs.frozen
class Layer:
    """The host's directories of a container's changes to its image.

    Attributes:
        paths: the directories; empty if the container has none of its own.
        is_copy: whether the image's files are in them too.
    """

    paths: tuple[str, ...]
    is_copy: bool = False


def changes_layer(namespace: Namespace | None) -> Layer | None:
    """Return where the changes of a container to its image are; None if unknown.

    The kernel's overlay names its upper directory. That of FUSE does not, and a plain directory
    (Podman's ``vfs``) is named relative to its file system. Both are found among the mounts of the
    process that started the container, which sees the engine's store.
    """
    if namespace is None:
        return None
    root = next((one for one in _mounts(namespace.visible) if one.target == "/"), None)
    if root is None:
        return None
    upper = _UPPER.search(root.options)
    if upper is not None:
        path = _plain(upper[1]).replace("\\", "")
        return Layer((path,)) if os.path.isdir(path) else None
    return _layer_outside(root, _mounts(parent_of(namespace.init)))


def _layer_outside(root: _Mount, mounts: Sequence[_Mount]) -> Layer | None:
    same = [one for one in mounts if one.device == root.device]
    if root.options.startswith("fuse"):
        # The layout of containers/storage and of Docker: ID/merged beside ID/diff. In ID/work,
        # fuse-overlayfs keeps the files that are deleted and still open.
        places = [os.path.dirname(one.target) for one in same if one.target.endswith("/merged")]
        pairs = ((f"{place}/diff", f"{place}/work") for place in places)
        return next((Layer(pair) for pair in pairs if os.path.isdir(pair[0])), None)
    inside = [one for one in same if _is_below(root.top, one.top) and root.top != one.top]
    paths = [
        os.path.normpath(f"{one.target}/{os.path.relpath(root.top, one.top)}")
        for one in sorted(inside, key=lambda one: len(one.top), reverse=True)
    ]
    return next((Layer((path,), is_copy=True) for path in paths if os.path.isdir(path)), None)


@attrs.frozen
class _Mount:
    """A line of mountinfo; source: proc_pid_mountinfo(5)."""

    number: str
    device: str
    top: str  # of its file system
    target: str
    options: str  # the file system, its source and its own options


def _mounts(pid: int) -> list[_Mount]:
    found = []
    for line in os.fsdecode(read_proc(pid, "mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 4:
            found.append(_Mount(fields[0], fields[2], _plain(fields[3]), _plain(fields[4]), after))
    return found


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _is_below(path: str, top: str) -> bool:
    return top == "/" or path.startswith(f"{top}/")


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

    def add_deleted(self, facts: os.stat_result, *, is_on_root: bool) -> None:
        """Count a deleted file if it is on a file system that the container can write.

        Args:
            facts: those of the file.
            is_on_root: whether it is on the container's root file system. The files of an overlay
                whose layers are on several file systems have a device of their own.
        """
        if is_on_root or facts.st_dev in self.devices:
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


def _deleted_files(namespace: Namespace) -> Iterator[tuple[os.stat_result, bool]]:
    """Yield the deleted files that a container's processes hold open, and whether they are on its
    root file system.
    """
    roots = {one.number for one in _mounts(namespace.visible) if one.target == "/"}
    for pid in members((namespace,))[namespace.inode]:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue  # gone, or of another user
        for name in names:
            for facts in _stats([f"{folder}/{name}"]):
                if facts.st_nlink == 0 and stat.S_ISREG(facts.st_mode):
                    yield facts, _mount_of(pid, name) in roots


def _mount_of(pid: str, descriptor: str) -> str:
    """Return the number of the mount of an open file; "" if unknown. Source: proc_pid_fdinfo(5)."""
    found = _MOUNT_NUMBER.search(read_proc(pid, f"fdinfo/{descriptor}"))
    return found[1].decode() if found else ""


def _stats(paths: Iterable[str]) -> Iterator[os.stat_result]:
    for path in paths:
        try:
            yield os.stat(path)
        except OSError:
            continue


@attrs.frozen
class Free:
    """The free space of a file system.

    Attributes:
        space: free bytes.
        names: free inodes: how many more files it can hold.
    """

    space: int
    names: int


class DiskWatch:
    """The watch over the disk use of one container, with a thread of its own until :meth:`stop`.

    Attributes:
        used_bytes: disk use at the last count.
    """

    def __init__(
        self,
        limit_bytes: int,
        tops: Sequence[str],
        namespace: Namespace | None,
        end: End,
        copied: Use = NOTHING,
    ) -> None:
        """Start the watch.

        Args:
            limit_bytes: limit for all directories together.
            tops: directories of the host that the container can write.
            namespace: its processes, or None if they are not visible from here.
            end: ends the container; called with the reason and the exceeded limit, or "" if it may
                not be the cause.
            copied: what of these directories does not count; if parts of them are hidden, hidden
                parts have no effect, since the image has them.
        """
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._copied = copied
        self._tops = tops
        self._namespace = namespace
        self._end = end
        self._stopped = threading.Event()
        self._places = (*tops, *(namespace.tmpfs if namespace is not None else ()))
        self._begun: Mapping[int, Free] = free_space(tops)
        self._counted: Mapping[int, Free] = free_space(self._places)
        self._reserve = {
            device: min(RESERVE_BYTES, free.space // 2) for device, free in self._begun.items()
        }
        self._next = 0.0
        with (watched := _watched.get()).lock:
            watched.watches.append(self)
        threading.Thread(target=self._run, name="hyperruntime-disk", daemon=True).start()

    def stop(self) -> None:
        """Stop the watch; a check in progress may still finish."""
        self._stopped.set()
        with (watched := _watched.get()).lock, suppress(ValueError):  # it was stopped before
            watched.watches.remove(self)

    def _run(self) -> None:
        while not self._stopped.wait(_TICK_S):
            why, limit = self._look()
            if why and not self._stopped.is_set():
                self.stop()
                self._end(why, limit)

    def _look(self) -> tuple[str, str]:
        """Return why the container must end and the exceeded limit; two empty strings if it may
        live.

        A container below its own limit has not exceeded it, even if the host's disk is full: the
        limit is then "".
        """
        now = free_space(self._places)
        low = next(
            (device for device, free in now.items() if free.space < self._reserve.get(device, 0)),
            None,
        )
        if (low is not None or time.monotonic() >= self._due(now)) and (why := self._count(now)):
            return why, "disk_bytes"
        if low is None:
            return "", ""
        return self._judge_low(low, now[low]), ""

    def _due(self, now: Mapping[int, Free]) -> float:
        """Return the time of the next count: earlier if half of its remaining limit may have been
        taken.
        """
        room = max(MIB, (self._limit_bytes - self.used_bytes) // 2)
        taken = sum(
            _taken(self._counted[device], free)
            for device, free in now.items()
            if device in self._counted
        )
        return self._next - (_CALM_S if taken >= room else 0.0)

    def _count(self, now: Mapping[int, Free]) -> str:
        started = time.monotonic()
        stop_at = self._limit_bytes + self._copied.used_bytes
        use = measure(self._tops, self._namespace, stop_at)
        # a file that is replaced during a count may be counted twice
        if use.used_bytes > stop_at:
            use = min(
                use,
                measure(self._tops, self._namespace, stop_at),
                key=lambda use: use.used_bytes,
            )
        self.used_bytes = max(0, use.used_bytes - self._copied.used_bytes)
        self._counted = now
        took = time.monotonic() - started
        self._next = started + took + max(_CALM_S, _DUTY * took)
        if (
            use.hidden and not self._copied.hidden
        ):  # then all space that the file systems lost since the start counts
            lost = sum(
                _taken(self._begun[device], free)
                for device, free in now.items()
                if device in self._begun
            )
            self.used_bytes = max(self.used_bytes, lost)
        if self.used_bytes <= self._limit_bytes:
            return ""
        least = f"at least {self.used_bytes} bytes ({format_size(self.used_bytes)})"
        return f"its files took {least} of limits.disk_bytes={self._limit_bytes}"

    def _judge_low(self, device: int, free: Free) -> str:
        """Return why this container must end: only the largest ends, and the next one not before
        its space is freed.
        """
        with (watched := _watched.get()).lock:
            mine = [watch for watch in watched.watches if device in watch._begun]  # noqa: SLF001 - the same class
            if not mine or max(mine, key=lambda watch: watch.used_bytes) is not self:
                return ""
            if time.monotonic() < watched.ended.get(device, 0.0) + _RETURN_S:
                return ""
            watched.ended[device] = time.monotonic()
        return (
            f"the disk has only {format_size(free.space)} left, and its files took "
            f"{format_size(self.used_bytes)}"
        )


@attrs.frozen
class _Watched:
    """The watches of this process.

    Attributes:
        lock: for the two others.
        watches: those that are not stopped.
        ended: device to the time when a container ended for it.
    """

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    watches: list[DiskWatch] = attrs.field(factory=list)
    ended: dict[int, float] = attrs.field(factory=dict)


_watched: PerProcess[_Watched] = PerProcess(_Watched)


def free_space(tops: Sequence[str]) -> dict[int, Free]:
    """Return the free space of the file systems of directories, by device; missing directories are
    skipped.
    """
    found = {}
    for top in tops:
        try:
            facts = os.statvfs(top)
            found[os.stat(top).st_dev] = Free(facts.f_bavail * facts.f_frsize, facts.f_favail)
        except OSError:
            continue
    return found


def _taken(before: Free, now: Free) -> int:
    return max(before.space - now.space, (before.names - now.names) * LEAST_BYTES, 0)
