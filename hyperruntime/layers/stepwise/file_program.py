"""Change the files of an image as ``COPY``, ``ADD`` and ``WORKDIR`` do; a program of a build.

``unshare --user ... --mount python -m hyperruntime.layers.stepwise.file_program``, with a job on
standard input. It mounts the layers of the image in its own namespace and writes to the highest
one, so files get every owner that this user's subordinate ids can be. No process of the image runs
then, so a path without links stays one. The sources are untrusted: links are followed inside their
root.

Where BuildKit's reference is silent, this does what BuildKit 0.29 does.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import shutil
import stat
import sys
from pathlib import Path
from typing import Any, NoReturn

from hyperruntime.images.building.sources import Found, children, find, is_pattern, resolve
from hyperruntime.layers.holder import mount_layers
from hyperruntime.layers.snapshots.merging import is_of_fuse

# what fuse-overlayfs writes into a directory that hides those below
OPAQUE = frozenset({".wh..wh..opq", ".wh..opq"})
_REMOVED = ".wh."  # and for a removed file, where the kernel lets no user make a device
_OF_OVERLAYS = ("user.overlay.", "user.fuseoverlayfs.")
_HIDES = {"user.overlay.opaque", "user.fuseoverlayfs.opaque"}
_BATCH = 500


class _Owners:
    """The users of an image, and the rights to give files to them."""

    def __init__(self, root: str, *, users: bool) -> None:
        self._root = root
        self._users = users

    def find(self, text: str) -> tuple[int, int]:
        """Return the ids that ``USER[:GROUP]`` means."""
        name, _, group = text.partition(":")
        if name.isdigit():
            uid = int(name)
            gid = uid
        else:
            row = self._row("passwd", name)
            uid = int(row[2])
            gid = int(row[3])
        if group:
            gid = int(group) if group.isdigit() else int(self._row("group", group)[2])
        if (uid, gid) != (0, 0) and not self._users:
            _fail(f"files of the user {text} need subordinate ids, which this user does not have")
        return uid, gid

    def give(self, path: str, owner: tuple[int, int]) -> None:
        """Change the owner of a file, which must come before its mode."""
        status = os.lstat(path)
        if (status.st_uid, status.st_gid) != owner:
            os.chown(path, *owner, follow_symlinks=False)

    def _row(self, file: str, name: str) -> list[str]:
        path = Path(self._root, resolve(self._root, f"etc/{file}"))
        text = path.read_text(errors="replace") if path.is_file() else ""
        rows = (line.split(":") for line in text.splitlines())
        row = next((row for row in rows if row[0] == name and len(row) > 3), None)
        return row or _fail(f"the image has no {name!r} in /etc/{file}")


class _Copier:
    """Copies into the tree of an image.

    Attributes:
        made: the paths that it wrote, without links, in order.
    """

    def __init__(self, root: str, job: dict[str, Any], owners: _Owners) -> None:
        self.made: dict[str, None] = {}
        self._root = root
        self._from = job["from"]
        self._kept = None if job["kept"] is None else frozenset(job["kept"])
        self._owners = owners
        self._owner = owners.find(job["chown"]) if job["chown"] else None
        # files of the context belong to root, those of a stage to their owners
        self._keeps_owners = job["keeps_owners"]
        self._link = job["link"]
        self._unpacks = job["unpacks"]
        self._scratch = Path(job["scratch"])
        self._linked: dict[tuple[int, int], str] = {}

    def copy(self, source: str, target: str) -> list[str]:
        """Copy what a source means; return the archives that are to be unpacked instead."""
        found = find(self._from, source, self._kept)
        if not found and not is_pattern(source):
            _fail(f"{source!r} does not exist, or an ignore file leaves it out")
        if len(found) > 1 and not target.endswith("/") and not self._is_directory(target):
            _fail(f"{source!r} means several files, so the target must end with /")
        archives = []
        for one in found:
            path = f"{self._from}/{one.path}"
            if self._unpacks and _is_archive(path, self._scratch):
                archives.append(path)
            else:
                self.copy_one(one, target)
        return archives

    def copy_one(self, found: Found, target: str) -> None:
        """Copy a file, or the contents of a directory."""
        if os.path.isdir(f"{self._from}/{found.path}"):
            place = self._directory(target)
            for name in children(self._from, found.path, self._kept):
                self._entry(posixpath.join(found.path, name), f"{place}/{name}")
        elif target.endswith("/") or self._is_directory(target):
            self._entry(found.path, f"{self._directory(target)}/{found.name}")
        else:
            if not self._link:
                target = "/" + resolve(self._root, target)
            folder, name = posixpath.split(target)
            self._entry(found.path, f"{self._directory(folder)}/{name}")

    def _is_directory(self, target: str) -> bool:
        path = self._root + "/" + (target if self._link else resolve(self._root, target))
        return os.path.isdir(path) and not os.path.islink(path.rstrip("/"))

    def _directory(self, path: str) -> str:
        return make_directory(
            self._root, path, self._owners, self._owner or (0, 0), follows=not self._link
        )

    def _entry(self, source: str, target: str) -> None:
        """Copy a file, a link or a directory to a path without links of the machine."""
        path = f"{self._from}/{source}"
        status = os.lstat(path)
        kind = stat.S_IFMT(status.st_mode)
        is_there = os.path.isdir(target) and not os.path.islink(target)
        if kind == stat.S_IFDIR:
            if os.path.lexists(target) and not is_there:
                _fail(f"the directory {source!r} cannot replace a file of the image")
            if not is_there:
                os.mkdir(target, 0o700)
            for name in children(self._from, source, self._kept):
                self._entry(posixpath.join(source, name), f"{target}/{name}")
        else:
            if is_there:
                _fail(f"{source!r} cannot replace a directory of the image")
            if os.path.lexists(target):
                self._unlink(target)
            if not self._file(path, target, status):
                return
        self._stamp(path, target, status)

    def _unlink(self, target: str) -> None:
        """Remove a file, which an earlier source may have made."""
        os.unlink(target)
        if target in self.made:
            del self.made[target]
            self._linked = {inode: one for inode, one in self._linked.items() if one != target}

    def _file(self, path: str, target: str, status: os.stat_result) -> bool:
        """Make a file or a link; return whether it is a new one."""
        inode = (status.st_dev, status.st_ino)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(path), target)
        elif not stat.S_ISREG(status.st_mode):
            return False  # builders leave out pipes, sockets and devices
        elif inode in self._linked:
            os.link(self._linked[inode], target)
            return False
        else:
            shutil.copyfile(path, target)
            if status.st_nlink > 1:
                self._linked[inode] = target
        return True

    def _stamp(self, path: str, target: str, status: os.stat_result) -> None:
        own = (status.st_uid, status.st_gid) if self._keeps_owners else (0, 0)
        self._owners.give(target, self._owner or own)
        if not stat.S_ISLNK(status.st_mode):
            _copy_xattrs(path, target)
            os.chmod(target, stat.S_IMODE(status.st_mode))
            self.made[target] = None
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(target, ns=times, follow_symlinks=False)


def make_directory(
    root: str, path: str, owners: _Owners, owner: tuple[int, int], *, follows: bool = True
) -> str:
    """Make a directory of an image, with those above it; return its path on the machine.

    Args:
        root: the image's files.
        path: its path.
        owners: the image's users.
        owner: of new directories.
        follows: whether links of the image are followed; else they are replaced.
    """
    place = root
    for name in (resolve(root, path) if follows else path).split("/"):
        if not name:
            continue
        place = f"{place}/{name}"
        if os.path.islink(place):
            os.unlink(place)
        if not os.path.lexists(place):
            os.mkdir(place)
            owners.give(place, owner)
        elif not os.path.isdir(place):
            _fail(f"{place.removeprefix(root)} is not a directory")
    return place


def _change_modes(mode: str, paths: list[str]) -> None:
    """Change modes, never through a link; no other process writes to the tree."""
    paths = [path for path in paths if not os.path.islink(path)]
    if mode.isdigit():
        for path in paths:
            os.chmod(path, int(mode, 8))
        return
    for at in range(0, len(paths), _BATCH):  # from the bottom, as they were made
        _call("chmod", "--", mode, *paths[at : at + _BATCH])


def _unpack(archive: str, place: str, *, users: bool) -> None:
    """Unpack a tar, which is not trusted, into an empty directory."""
    os.mkdir(place)
    owner = ("--same-owner", "--numeric-owner") if users else ("--no-same-owner",)
    xattrs = ("--xattrs", "--xattrs-include=user.*", "--xattrs-exclude=user.overlay.*")
    _call("tar", "-x", "-p", "-f", archive, "-C", place, *owner, *xattrs)


def _is_archive(path: str, scratch: Path) -> bool:
    # few steps need it, and it takes long
    from hyperruntime.layers.blobs import NoProgramError, is_archive

    try:
        return os.path.isfile(path) and is_archive(Path(path), scratch)
    except NoProgramError as error:
        _fail(f"{posixpath.basename(path)} cannot be unpacked: {error}")


def _copy(job: dict[str, Any], root: str, owners: _Owners) -> None:
    """Copy all sources; contents of archives, for which ``--chmod`` does not count, last."""
    archives = []
    copier = _Copier(root, job, owners)
    for source in job["sources"]:
        archives += copier.copy(source, job["target"])
    if "texts" in job:
        own = {"from": job["texts"], "kept": None}
        texts = _Copier(root, {**job, **own}, owners)
        for name in sorted(os.listdir(job["texts"])):
            texts.copy_one(Found(name, name), job["target"])
        copier.made |= texts.made
    if job["chmod"]:
        _change_modes(job["chmod"], list(copier.made))
    for number, archive in enumerate(archives):
        place = f"{job['scratch']}/unpacked-{number}"
        _unpack(archive, place, users=job["users"])
        own = {"from": place, "kept": None, "keeps_owners": job["users"]}
        _Copier(root, {**job, **own}, owners).copy_one(Found("", ""), job["target"])


def _run(job: dict[str, Any]) -> None:
    os.umask(0o022)
    for mount in job["mounts"]:
        mount_layers(mount)
    root = job.get("root", "/")
    owners = _Owners(root, users=job["users"])
    if job["do"] == "copy":
        _copy(job, root, owners)
    elif job["do"] == "directory":
        owner = owners.find(job["owner"]) if job["owner"] else (0, 0)
        make_directory(root, job["path"], owners, owner)
    else:
        _merge(job["trees"], job["target"])


def _merge(trees: list[str], target: str) -> None:
    """Make one tree of layers, the highest first. Files are shared with them by hard links, because
    nothing writes to layers and images. The marks of fuse-overlayfs are obeyed in its layers alone:
    in others, files may have such names.
    """
    is_near = os.stat(trees[-1]).st_dev == os.stat(posixpath.dirname(target)).st_dev
    _call("cp", "-al" if is_near else "-a", trees[-1], target)
    for layer in trees[-2::-1]:
        _lay(layer, target, by_fuse=is_of_fuse(layer))


def _lay(layer: str, target: str, *, by_fuse: bool) -> None:
    """Lay a layer of an overlay over a tree."""
    names = os.listdir(layer)
    marks = {name for name in names if by_fuse and name.startswith(_REMOVED)}
    for name in {mark.removeprefix(_REMOVED) for mark in marks - OPAQUE} - {"", ".", ".."}:
        _remove(f"{target}/{name}")
    for name in set(names) - marks:
        path = f"{layer}/{name}"
        place = f"{target}/{name}"
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            hides = _HIDES & set(os.listxattr(path)) or (by_fuse and OPAQUE & set(os.listdir(path)))
            if hides or not os.path.isdir(place) or os.path.islink(place):
                _remove(place)
                os.mkdir(place)
            _lay(path, place, by_fuse=by_fuse)
            continue
        _remove(place)
        if stat.S_ISCHR(status.st_mode):
            continue  # a whiteout: devices cannot be made in a user namespace
        try:
            os.link(path, place, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EMLINK):
                raise
            _call("cp", "-a", path, place)
    status = os.stat(layer)
    os.chown(target, status.st_uid, status.st_gid)
    _copy_xattrs(layer, target)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _copy_xattrs(path: str, target: str) -> None:
    for name in os.listxattr(path):
        if name.startswith("user.") and not name.startswith(_OF_OVERLAYS):
            os.setxattr(target, name, os.getxattr(path, name))


def _call(*args: str) -> None:
    from hyperruntime.host.process import run_process  # few steps need it, and it takes long

    result = run_process(args)
    if result.exit_code != 0:
        lines = result.stderr.decode(errors="replace").splitlines()
        own = [line for line in lines if line.strip() and "previous errors" not in line]
        _fail(own[-1] if own else result.error_text)  # the last line of tar names no file


def _fail(why: str) -> NoReturn:
    raise ValueError(why)


if __name__ == "__main__":
    try:
        _run(json.load(sys.stdin))
    except (OSError, ValueError) as error:
        sys.exit(str(error))
