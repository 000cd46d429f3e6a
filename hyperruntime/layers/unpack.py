"""Unpack the layers of an image into one directory.

The layers are untrusted. Each directory is opened from its parent's descriptor without following
links; a link in a member's path is followed here, with the tree as the root, as in a chroot. Files
get their owners last, where this user has subordinate ids; devices are left out. Source: OCI image
specification 1.1, "Image Layer Filesystem Changeset".
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import BinaryIO

from hyperruntime.concurrency.closing import Closing, closing_descriptor
from hyperruntime.errors import ImageError
from hyperruntime.host.process import run_process
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.layers.owners import Owner, give_owners
from hyperruntime.storage.tar_reader import Member, TarReader

Parts = tuple[bytes, ...]
OpenLayer = Callable[[], AbstractContextManager[BinaryIO]]
MOST_ENTRIES = 2_000_000
MOST_NAME_BYTES = 256 * 1024**2  # of all directories: their times are kept in memory until the end
MOUNT_POINTS = ("dev", "etc", "proc", "run", "sys", "tmp", "var/tmp")

_HIDES = b".wh."
_OPAQUE = b".wh..wh..opq"
_RESERVED = b".wh..wh."
_MOST_LINKS = 40  # as the kernel's limit for one path
_PATH_MAX = 4096
_CHUNK = 1024 * 1024
_LEFT_OUT = ("a character device", "a block device", "a FIFO")
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_XATTR = (errno.ENOTSUP, errno.EPERM, errno.E2BIG, errno.ENOSPC, errno.ERANGE)


def unpack_layers(
    rootfs: Path, layers: Sequence[OpenLayer], files: Sequence[tuple[str, bytes]] = ()
) -> None:
    """Make a directory with the files of an image, and the mount points that it lacks.

    Args:
        rootfs: the directory to make.
        layers: what opens each layer, an uncompressed tar, from the lowest one; it is opened twice.
        files: more files, by their paths, which replace those of the image.

    Raises:
        ImageError: a layer is hostile, too large for this disk, or damaged.
        TransferError: a layer is not a tar, or is damaged.
        OSError: the tree cannot be written.
    """
    rootfs.mkdir(mode=0o700)
    with LayerTree(rootfs) as tree:
        for number, layer in enumerate(layers):
            if number:
                tree.hide(layer)
            tree.add(layer)
        for path, content in files:
            tree.write(path, content)
        tree.make_mount_points()
        tree.stamp()
        give_owners(rootfs, tree.owners)


def make_usable(rootfs: Path) -> None:
    """Give this user all rights to the files of a tree that another program unpacked, and make the
    mount points that are missing.
    """
    run_process(["chmod", "-R", "u+rwX", str(rootfs)], cwd="/")
    make_mount_points(rootfs)


def make_mount_points(rootfs: Path) -> None:
    """Make the mount points of a container's own file systems, where a tree lacks them."""
    with LayerTree(rootfs) as tree:
        tree.make_mount_points()
        tree.stamp()


class LayerTree(Closing):
    """A directory that takes layers; nobody else writes to it. Paths are tuples of components.

    Attributes:
        owners: those of its files that are not root's, by the numbers of their inodes.
    """

    def __init__(self, root: Path) -> None:
        """Open an existing directory."""
        self.owners: dict[int, Owner] = {}
        self._root = os.open(root, _OPEN_DIRECTORY)
        space = os.fstatvfs(self._root)
        # a ramfs has as much as the memory, and counts nothing
        self._most_bytes = space.f_bavail * space.f_frsize if space.f_blocks else sys.maxsize
        self._entries = 0
        self._bytes = 0
        self._name_bytes = 0
        self._stamps: dict[Parts, tuple[int, int | None]] = {}
        self._last: tuple[Parts, Parts, int] | None = None  # as asked, as found, its descriptor

    def close(self) -> None:
        """Close the descriptors; the tree stays."""
        self._forget()
        os.close(self._root)

    def hide(self, layer: OpenLayer) -> None:
        """Remove what the whiteouts of a layer hide: files of lower layers only, so this comes
        before its own files. No link is followed, so that none leads to other files.
        """
        with closing(self._members(layer, keep=False)) as members:
            for parts, _ in members:
                if parts and parts[-1].startswith(_HIDES):
                    with suppress(FileNotFoundError):
                        self._hide(parts[:-1], parts[-1])

    def add(self, layer: OpenLayer) -> None:
        """Add the files of a layer, which replace those of lower layers."""
        self._stamps.setdefault((), (0o755, None))
        with closing(self._members(layer, keep=True)) as members:
            for parts, (member, reader) in members:
                if not (parts and parts[-1].startswith(_HIDES)):
                    self._add(parts, member, reader)

    def write(self, path: str, content: bytes) -> None:
        """Write a file of mode 0755, in place of one of this name."""
        *above, name = _parts(os.fsencode(path))
        parent = self._directory(tuple(above))[1]
        self._clear(parent, name)
        with closing_descriptor(os.open(name, _CREATE_FILE, 0o600, dir_fd=parent)) as file:
            _write_all(file, content)
            os.fchmod(file, 0o755)
            self._note_owner(os.fstat(file), (0, 0))

    def make_mount_points(self) -> None:
        """Make the mount points of a container's own file systems that are missing."""
        for path in MOUNT_POINTS:
            *above, name = _parts(path.encode())
            found, parent = self._directory(tuple(above))
            if _kind(parent, name) is None:
                # whatever the umask is: other users need it
                self._mkdir(parent, (*found, name), 0o1777 if name == b"tmp" else 0o755)

    def stamp(self) -> None:
        """Set the modes and the times of the directories, after all their files were made."""
        for parts in sorted(self._stamps):
            mode, mtime_ns = self._stamps[parts]
            with suppress(FileNotFoundError):  # a later layer hides it
                directory = self._directory(parts, makes=False, follows=False)[1]
                os.fchmod(directory, mode & 0o7777 | 0o700)
                if mtime_ns is not None:
                    os.utime(directory, ns=(mtime_ns, mtime_ns))
        self._stamps.clear()

    def _members(
        self, layer: OpenLayer, *, keep: bool
    ) -> Generator[tuple[Parts, tuple[Member, TarReader]], None, None]:
        """Yield the members of a layer within the limits; ``keep``: what they take counts for the
        next layer too.
        """
        self._forget()
        entries = self._entries
        size = self._bytes
        with layer() as file:
            reader = TarReader(file)
            for member in reader:
                entries += 1
                size += member.size
                self._limit(entries, size + reader.record_bytes)
                if keep:
                    self._entries += 1
                yield _checked(member.name), (member, reader)
            # what follows counts for the layer's digest
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                self._limit(entries, size)
        if keep:
            self._bytes = size

    def _limit(self, entries: int, size: int) -> None:
        if max(entries, self._entries) > MOST_ENTRIES:
            raise ImageError(f"it has more than {MOST_ENTRIES} files; make a smaller image")
        if size > self._most_bytes:
            free = f"{self._most_bytes // 1024**2} MiB"
            raise ImageError(
                f"its files need more than the {free} that are free on the disk of the image store; "
                "free space there"
            )

    def _hide(self, above: Parts, name: bytes) -> None:
        """Do what a whiteout says, in an existing directory."""
        if name == _OPAQUE:
            directory = self._directory(above, makes=False, follows=False)[1]
            for below in os.listdir(directory):
                self._clear(directory, os.fsencode(below))
        elif not name.startswith(_RESERVED):
            hidden = name.removeprefix(_HIDES)
            if hidden in (b"", b".", b".."):
                raise _hostile(b"/".join((*above, name)), "it hides no file by its name")
            self._clear(self._directory(above, makes=False, follows=False)[1], hidden)

    def _add(self, parts: Parts, member: Member, reader: TarReader) -> None:
        if not parts:
            if member.kind != "directory":
                raise _hostile(member.name, "the root must be a directory")
            self._keep((), member.mode, member.mtime_ns)
            return
        if member.kind == "other" and member.problem not in _LEFT_OUT:
            raise _hostile(member.name, f"{member.problem} cannot be unpacked")
        name = parts[-1]
        found, parent = self._directory(parts[:-1])
        if member.kind == "directory":
            self._add_directory(parent, (*found, name), member)
            return
        if member.kind == "hardlink":
            self._add_link(found, parent, name, member)
            return
        self._clear(parent, name)
        if member.kind == "symlink":
            if b"\0" in member.link:
                raise _hostile(member.name, "no link can have this target")
            os.symlink(member.link, name, dir_fd=parent)
            times = (member.mtime_ns, member.mtime_ns)
            os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)
            self._note_owner(os.stat(name, dir_fd=parent, follow_symlinks=False), member.owner)
        elif member.kind == "file":
            with closing_descriptor(os.open(name, _CREATE_FILE, 0o600, dir_fd=parent)) as file:
                for chunk in reader.data():
                    _write_all(file, chunk)
                _set_xattrs(file, member)
                runs = 0o100 if member.mode & 0o111 else 0
                os.fchmod(file, member.mode & 0o7777 | 0o600 | runs)
                os.utime(file, ns=(member.mtime_ns, member.mtime_ns))
                self._note_owner(os.fstat(file), member.owner)

    def _add_directory(self, parent: int, found: Parts, member: Member) -> None:
        if _kind(parent, found[-1]) != stat.S_IFDIR:
            self._clear(parent, found[-1])
            os.mkdir(found[-1], 0o700, dir_fd=parent)
        with closing_descriptor(os.open(found[-1], _OPEN_DIRECTORY, dir_fd=parent)) as made:
            _set_xattrs(made, member)
            self._note_owner(os.fstat(made), member.owner)
        self._keep(found, member.mode, member.mtime_ns)

    def _add_link(self, found: Parts, parent: int, name: bytes, member: Member) -> None:
        target = _checked(member.link)
        refused = _hostile(member.name, "it is a hard link to no file of the image")
        with closing_descriptor(os.dup(parent)) as home:
            try:
                at, source = self._directory(target[:-1], makes=False)
            except FileNotFoundError:
                raise refused from None
            if not target or _kind(source, target[-1]) in (None, stat.S_IFDIR):
                raise refused
            if (*at, target[-1]) == (*found, name):
                return
            with closing_descriptor(os.dup(source)) as kept:
                self._clear(home, name)
                os.link(target[-1], name, src_dir_fd=kept, dst_dir_fd=home, follow_symlinks=False)

    def _directory(
        self, parts: Parts, *, makes: bool = True, follows: bool = True
    ) -> tuple[Parts, int]:
        """Return the path without links and the descriptor of a directory; the next call may close
        it.

        Args:
            parts: its path.
            makes: whether to make a missing one, and one in place of a file.
            follows: whether its path may go through links.

        Raises:
            FileNotFoundError: it does not exist, and may not be made.
        """
        asked, found, descriptor = self._last or ((), (), -1)
        if descriptor < 0 or parts[: len(asked)] != asked:
            self._forget()
            asked = ()
            found = ()
            descriptor = os.dup(self._root)
        self._last = None
        left = parts[len(asked) :]
        found, descriptor = self._walk(found, descriptor, left, makes=makes, follows=follows)
        self._last = parts, found, descriptor
        return found, descriptor

    def _walk(
        self, found: Parts, descriptor: int, parts: Parts, *, makes: bool, follows: bool
    ) -> tuple[Parts, int]:
        """Go on from an open directory, which is closed; the rest as for :meth:`_directory`."""
        left = deque(parts)
        links = 0
        try:
            while left:
                name = left.popleft()
                if name == b"..":
                    deeper = os.open(b"..", _OPEN_DIRECTORY, dir_fd=descriptor) if found else -1
                    found = found[:-1]
                elif (kind := _kind(descriptor, name)) == stat.S_IFLNK and follows:
                    links += 1
                    if links > _MOST_LINKS:
                        raise _hostile(b"/".join(parts), "its path goes through too many links")
                    target = os.readlink(name, dir_fd=descriptor)
                    left.extendleft(reversed(_parts(target)))
                    deeper = -1
                    if target.startswith(b"/"):
                        deeper = os.dup(self._root)
                        found = ()
                else:
                    if kind != stat.S_IFDIR:
                        if not makes:
                            raise FileNotFoundError
                        self._clear(descriptor, name)
                        self._mkdir(descriptor, (*found, name), 0o755)
                    deeper = os.open(name, _OPEN_DIRECTORY, dir_fd=descriptor)
                    found = (*found, name)
                if deeper >= 0:
                    os.close(descriptor)
                    descriptor = deeper
        except BaseException:
            os.close(descriptor)
            raise
        return found, descriptor

    def _mkdir(self, parent: int, found: Parts, mode: int) -> None:
        self._entries += 1
        self._limit(0, 0)
        os.mkdir(found[-1], 0o700, dir_fd=parent)
        self._note_owner(os.stat(found[-1], dir_fd=parent), (0, 0))
        self._keep(found, mode, None)

    def _note_owner(self, status: os.stat_result, owner: Owner) -> None:
        """Note the owner of a new file; its inode may have had another file before."""
        if any(owner):
            self.owners[status.st_ino] = owner
        else:
            self.owners.pop(status.st_ino, None)

    def _keep(self, found: Parts, mode: int, mtime_ns: int | None) -> None:
        if found not in self._stamps:
            self._name_bytes += sum(map(len, found))
            if self._name_bytes > MOST_NAME_BYTES:
                raise ImageError(
                    f"the names of its directories take more than {MOST_NAME_BYTES} bytes; make a "
                    "smaller image"
                )
        self._stamps[found] = (mode, mtime_ns)

    def _clear(self, parent: int, name: bytes) -> None:
        """Remove an entry, if there is one."""
        kind = _kind(parent, name)
        if kind is None:
            return
        if self._last is not None and self._last[2] != parent:
            self._forget()  # its path may go through this entry
        if kind == stat.S_IFDIR:
            remove_tree(os.fsdecode(b"/proc/self/fd/%d/%s" % (parent, name)))
        else:
            os.unlink(name, dir_fd=parent)

    def _forget(self) -> None:
        if self._last is not None:
            os.close(self._last[2])
            self._last = None


def _parts(name: bytes) -> Parts:
    """Return the components of a path, taken relative to the root of the image."""
    return tuple(one for one in name.split(b"/") if one not in (b"", b"."))


def _checked(name: bytes) -> Parts:
    parts = _parts(name)
    if b".." in parts:
        raise _hostile(name, "it leads out of the image by `..`")
    if len(name) >= _PATH_MAX or b"\0" in name:
        raise _hostile(name, "no file can have this name")
    return parts


def _hostile(name: bytes, why: str) -> ImageError:
    shown = os.fsdecode(name[:200]).encode("unicode_escape", "replace").decode("ascii", "replace")
    return ImageError(f"its member {shown!r} is refused: {why}")


def _kind(parent: int, name: bytes) -> int | None:
    """Return the type bits of an entry, without following a link; None if there is none."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _set_xattrs(file: int, member: Member) -> None:
    for name, value in member.xattrs:
        # those of overlays would change what an overlay over the tree shows
        if name.startswith("user.") and not name.startswith("user.overlay.") and "\0" not in name:
            try:
                os.setxattr(file, name, value)
            except OSError as error:
                if error.errno not in _NO_XATTR:
                    raise


def _write_all(file: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
