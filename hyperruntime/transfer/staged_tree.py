"""Build a file tree in a hidden staging directory, then move it into place.

Every path is opened component by component, without following links, so a staged link cannot
redirect a later write. A killed process leaves at most one hidden ``.hyperruntime-*`` directory in
or beside the target.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from hyperruntime.concurrency.closing import Closing, closing_descriptor
from hyperruntime.storage.run_files import open_directory

ROOT = b"root"  # name in the staging directory of the entry that becomes the target
Parts = tuple[bytes, ...]

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PERMISSIONS = 0o777  # no set-user-id, set-group-id or sticky bit
_DEFAULT_MODE = 0o755
_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_Located = tuple[int, bytes]  # a name in an open directory
_Made = TypeVar("_Made")


class EntryRefusedError(Exception):
    """One entry may not be created here; other entries may."""


class StagedTree(Closing):
    """A tree that is staged first and then installed; paths are tuples of components that begin
    with ``ROOT``.
    """

    def __init__(self, target: bytes, before_implied: Callable[[], None] = lambda: None) -> None:
        """Create the staging directory: in the target if it is a directory (it may be a mount),
        else beside it.

        Args:
            target: the path to create.
            before_implied: called before a missing parent directory is created; it may raise.

        Raises:
            OSError: the staging directory cannot be created.
        """
        self._before_implied = before_implied
        self._target = os.path.abspath(target)
        parent, self._name = os.path.split(self._target)
        self._merging = os.path.isdir(target) and not os.path.islink(target)
        self._cached: tuple[Parts, int] | None = None
        self._stamps: dict[Parts, tuple[int, int | None]] = {}
        self._links: list[Parts] = []
        self._home = os.open(
            target if self._merging else parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
        self._hidden = f".hyperruntime-{secrets.token_hex(8)}"
        try:
            os.mkdir(self._hidden, 0o700, dir_fd=self._home)
            self._top = os.open(self._hidden, _OPEN_DIRECTORY, dir_fd=self._home)
        except BaseException:
            os.close(self._home)
            raise

    def close(self) -> None:
        """Remove the staging directory."""
        self._forget()
        os.close(self._top)
        shutil.rmtree(self._hidden, ignore_errors=True, dir_fd=self._home)
        os.close(self._home)

    def make_directory(
        self, parts: Parts, mode: int = _DEFAULT_MODE, mtime_ns: int | None = None
    ) -> None:
        """Create a directory, or keep an existing one; :meth:`install` sets its mode and time.

        Args:
            parts: path of the directory.
            mode: permission bits; other bits are ignored.
            mtime_ns: nanoseconds since the epoch; None leaves the time as it is.

        Raises:
            EntryRefusedError: its path goes through a link or a file.
        """
        parent = self._directory(parts[:-1])
        try:
            os.close(os.open(parts[-1], _OPEN_DIRECTORY, dir_fd=parent))
        except OSError as error:
            if error.errno not in _NO_DIRECTORY:
                raise
            _replace((parent, parts[-1]), lambda: self._mkdir(parent, parts))
        self._stamps[parts] = (mode & _PERMISSIONS, mtime_ns)

    def create_file(self, parts: Parts) -> int:
        """Create a file of mode 0600 and return its file descriptor for writing; the caller closes
        it.

        Raises:
            EntryRefusedError: its path goes through a link or a file, or a non-empty directory has
                its name.
        """
        parent = self._directory(parts[:-1])
        return _replace(
            (parent, parts[-1]), lambda: os.open(parts[-1], _CREATE_FILE, 0o600, dir_fd=parent)
        )

    def make_symlink(self, parts: Parts, link: bytes, mtime_ns: int) -> None:
        """Create a symbolic link; the caller must check that it stays in the tree.

        Args:
            parts: path of the link.
            link: its target.
            mtime_ns: nanoseconds since the epoch.

        Raises:
            EntryRefusedError: as for :meth:`create_file`.
        """
        parent = self._directory(parts[:-1])
        _replace((parent, parts[-1]), lambda: os.symlink(link, parts[-1], dir_fd=parent))
        self._links.append(parts)
        os.utime(parts[-1], ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)

    def make_hardlink(self, parts: Parts, existing: Parts) -> None:
        """Create a hard link to a regular file of this tree.

        Args:
            parts: path of the link.
            existing: path of the file.

        Raises:
            EntryRefusedError: as for :meth:`create_file`, or ``existing`` is not a regular file of
                this tree.
        """
        try:
            with closing_descriptor(os.dup(self._directory(existing[:-1], create=False))) as source:
                if not stat.S_ISREG(
                    os.stat(existing[-1], dir_fd=source, follow_symlinks=False).st_mode
                ):
                    raise EntryRefusedError("a hard link to an entry that is not a regular file")
                parent = self._directory(parts[:-1])
                if parts != existing:
                    link = partial(
                        os.link, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False
                    )
                    _replace((parent, parts[-1]), lambda: link(existing[-1], parts[-1]))
        except FileNotFoundError:
            raise EntryRefusedError(
                "a hard link to a file that the archive did not bring"
            ) from None

    def install(self) -> list[tuple[bytes, str]]:
        """Move the tree to its target, or merge it into an existing directory; return
        ``(name, reason)`` of refusals.

        A new entry replaces a file, a link or an empty directory of the same name. A directory is
        merged into an existing directory, which keeps its mode. A non-empty directory is never
        replaced by a file or a link.

        Raises:
            EntryRefusedError: the tree is empty, or the target itself cannot be replaced.
        """
        self._forget()
        name = b"." if self._merging else self._name
        refused: list[tuple[bytes, str]] = []
        try:
            self._move((self._top, ROOT), (self._home, name), (ROOT,), refused)
        except FileNotFoundError:
            raise EntryRefusedError("the archive holds no entry that may be written here") from None
        if self._merging:
            refused += self._remove_links_out()
        for parts in sorted(self._stamps, reverse=True):  # children before their directory
            self._stamp((name, *parts[1:]), *self._stamps[parts])
        return refused

    def _move(
        self, new: _Located, old: _Located, parts: Parts, refused: list[tuple[bytes, str]]
    ) -> None:
        brings_directory = _is_directory(new)
        has_directory = _is_directory(old)
        if brings_directory and has_directory:
            self._stamps.pop(parts, None)
            self._merge(new, old, parts, refused)
            return
        if brings_directory is None:
            raise FileNotFoundError
        if has_directory is not None and brings_directory != has_directory:
            _clear(old)
        os.rename(new[1], old[1], src_dir_fd=new[0], dst_dir_fd=old[0])

    def _merge(
        self, new: _Located, old: _Located, parts: Parts, refused: list[tuple[bytes, str]]
    ) -> None:
        with (
            closing_descriptor(os.open(new[1], _OPEN_DIRECTORY, dir_fd=new[0])) as source,
            closing_descriptor(os.open(old[1], _OPEN_DIRECTORY, dir_fd=old[0])) as home,
        ):
            for name in map(os.fsencode, os.listdir(source)):
                try:
                    self._move((source, name), (home, name), (*parts, name), refused)
                except EntryRefusedError as refusal:
                    refused.append((b"/".join((*parts[1:], name)), str(refusal)))

    def _remove_links_out(self) -> list[tuple[bytes, str]]:
        """Remove new links that lead out of the tree through a link that was already in the
        target.
        """
        removed = []
        top = os.path.realpath(self._target)
        for parts in self._links:
            path = os.path.join(top, *parts[1:])
            if os.path.islink(path) and os.path.commonpath([os.path.realpath(path), top]) != top:
                os.unlink(path)
                removed.append((b"/".join(parts[1:]), "it leads out through a link of the target"))
        return removed

    def _stamp(self, path: Parts, mode: int, mtime_ns: int | None) -> None:
        try:
            with closing_descriptor(open_directory(self._home, path)) as descriptor:
                os.fchmod(descriptor, mode)
                if mtime_ns is not None:
                    os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        except OSError as error:
            # a later member or the target has another entry here
            if error.errno not in _NO_DIRECTORY:
                raise

    def _directory(self, parts: Parts, *, create: bool = True) -> int:
        """Return the file descriptor of a directory of this tree; the cache owns it, and the next
        call may close it.
        """
        known, descriptor = self._cached or ((), None)
        if descriptor is None or parts[: len(known)] != known:
            self._forget()
            known = ()
            descriptor = os.dup(self._top)
            self._cached = known, descriptor
        for end in range(len(known) + 1, len(parts) + 1):
            deeper = self._enter(descriptor, parts[:end], create)
            os.close(descriptor)
            descriptor = deeper
            self._cached = parts[:end], descriptor
        return descriptor

    def _enter(self, parent: int, parts: Parts, create: bool) -> int:
        try:
            return os.open(parts[-1], _OPEN_DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise
        except OSError as error:
            if error.errno in _NO_DIRECTORY:
                raise EntryRefusedError("its path goes through a link or a file") from None
            raise
        self._before_implied()
        self._mkdir(parent, parts)
        return os.open(parts[-1], _OPEN_DIRECTORY, dir_fd=parent)

    def _mkdir(self, parent: int, parts: Parts) -> None:
        os.mkdir(parts[-1], 0o700, dir_fd=parent)
        self._stamps[parts] = (_DEFAULT_MODE, None)

    def _forget(self) -> None:
        if self._cached is not None:
            os.close(self._cached[1])
            self._cached = None


def stamp_file(descriptor: int, mode: int, mtime_ns: int) -> None:
    """Set a file's permissions, without special mode bits, and its time.

    Args:
        descriptor: file descriptor of the file.
        mode: permission bits; other bits are ignored.
        mtime_ns: nanoseconds since the epoch.
    """
    os.fchmod(descriptor, mode & _PERMISSIONS)
    os.utime(descriptor, ns=(mtime_ns, mtime_ns))


def _replace(entry: _Located, make: Callable[[], _Made]) -> _Made:
    """Create an entry; if another entry has its name, remove that first."""
    try:
        return make()
    except FileExistsError:
        _clear(entry)
        return make()


def _clear(entry: _Located) -> None:
    if not _is_directory(entry):
        os.unlink(entry[1], dir_fd=entry[0])
        return
    try:
        os.rmdir(entry[1], dir_fd=entry[0])
    except OSError as error:
        raise EntryRefusedError(
            f"a directory has its name and cannot be replaced: {error.strerror}"
        ) from None


def _is_directory(entry: _Located) -> bool | None:
    """Return True for a directory, False for another entry (links included), None if the entry does
    not exist.
    """
    try:
        mode = os.stat(entry[1], dir_fd=entry[0], follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    return stat.S_ISDIR(mode)
