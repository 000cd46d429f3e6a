"""Store images on disk: unpacked trees by digest, and their references.

An image is written under a temporary name and renamed, under a lock. So concurrent processes make
one image, and a killed process leaves no incomplete one. On a network file system, which is slow
for many small files and cannot hold an overlay, the store keeps one packed file for each image, and
each machine unpacks it on its own scratch disk.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
from filelock import FileLock, Timeout
from platformdirs import user_data_path

from hyperruntime.errors import StorageError, write_error
from hyperruntime.host.temporary import NETWORK_FILE_SYSTEMS, file_system
from hyperruntime.images.pull_errors import with_tag
from hyperruntime.layers import one_file
from hyperruntime.layers.archive import pack
from hyperruntime.layers.blobs import archive_errors, opened
from hyperruntime.layers.config import ImageConfig
from hyperruntime.layers.scratch import own_scratch, remove_tree
from hyperruntime.layers.sif import unpack_sif
from hyperruntime.layers.unpack import unpack_layers
from hyperruntime.storage.atomic import write_atomic

VARIABLE = "HYPERRUNTIME_IMAGES"
ROOTFS = "rootfs"
SIF = "image.sif"
_PACKED = "rootfs.tar.gz"
_ONE_FILE = f"{ROOTFS}{one_file.SUFFIX}"
_DIGEST = re.compile("[0-9a-f]{64}")
_UNPACKED_FACTOR = 6  # an unpacked tree takes at most about 6 times the space of its SIF


@attrs.frozen(kw_only=True)
class Entry:
    """One image of the store.

    Attributes:
        id: the digest of the image's source, 64 hexadecimal digits.
        references: the image's names.
        created: seconds since the epoch.
        size_bytes: bytes of its files.
        config: what it says about its commands.
        path: its directory in the store.
    """

    id: str
    references: tuple[str, ...]
    created: float
    size_bytes: int
    config: ImageConfig
    path: Path


class Store:
    """The images of one user."""

    def __init__(self, root: Path | None = None) -> None:
        """Use a directory, by default this user's own; nothing is created yet."""
        named = os.environ.get(VARIABLE)
        self.root = root or (Path(named) if named else user_data_path("hyperruntime") / "images")

    def entries(self) -> tuple[Entry, ...]:
        """Return all images."""
        names = self._references()
        paths = sorted(self.root.glob("images/*/meta.json"))
        found = (self._entry(path.parent.name, names) for path in paths)
        return tuple(entry for entry in found if entry is not None)

    def find(self, reference: str) -> Entry | None:
        """Return the image with exactly this reference or full identifier, or None."""
        names = self._references()
        digest = names.get(with_tag(reference)) or reference.removeprefix("sha256:")
        return self._entry(digest, names) if _DIGEST.fullmatch(digest) else None

    def of_tree(self, tree: str) -> Entry | None:
        """Return the image that a tree of this store belongs to, or None."""
        digest = next(filter(_DIGEST.fullmatch, tree.split(os.sep)), "")
        return self._entry(digest, self._references()) if digest else None

    def _entry(self, digest: str, names: Mapping[str, str]) -> Entry | None:
        """Return an image, or None if it does not exist (another process may be removing it)."""
        path = self.root / "images" / digest
        try:
            facts = json.loads((path / "meta.json").read_text())
        except FileNotFoundError:
            return None
        return Entry(
            id=digest,
            references=tuple(sorted(name for name, image in names.items() if image == digest)),
            created=float(facts["created"]),
            size_bytes=int(facts["size_bytes"]),
            config=ImageConfig.from_oci(facts["config"]),
            path=path,
        )

    def make(
        self,
        digest: str,
        reference: str,
        fill: Callable[[Path], None],
        config: ImageConfig | None = None,
    ) -> str:
        """Give an image a reference and return its identifier; make the image first if it does not
        exist.

        Args:
            digest: the image's identifier.
            reference: the name to give it.
            fill: called with an empty directory to make the image; it makes ``rootfs`` there, or
                ``image.sif`` if there is no space for that.
            config: what it says about its commands.

        Raises:
            StorageError: the store cannot be written.
        """
        with self.lock(digest):
            if not (self.root / "images" / digest / "meta.json").exists():
                with self.scratch() as directory:
                    fill(directory)
                    with self._writing():
                        self._publish(directory, digest, config or ImageConfig())
            self._update_references(lambda names: names.update({with_tag(reference): digest}))
        return digest

    def untag(self, entry: Entry, reference: str) -> None:
        """Remove a reference from an image, and the image with its last reference.

        Args:
            entry: the image.
            reference: the name to remove; the image's identifier removes all its names.
        """
        wanted = (
            {with_tag(reference)}
            if with_tag(reference) in entry.references
            else set(entry.references)
        )
        with self.lock(entry.id):
            self._update_references(lambda names: [names.pop(name, None) for name in wanted])
            if entry.id not in self._references().values():  # another process may have given it one
                # a killed removal leaves nothing that looks like an image
                (entry.path / "meta.json").unlink(missing_ok=True)
                remove_tree(str(entry.path), str(self._unpacked() / entry.id))

    def tree(self, entry: Entry, *, mounts: bool = False) -> Path:
        """Return the directory of an image's files; the SIF if there is no space to unpack it.

        Args:
            entry: the image.
            mounts: whether the caller mounts an image of one file (:mod:`.one_file`) there.

        Raises:
            ImageError: the packed file cannot be unpacked.
        """
        rootfs = entry.path / ROOTFS
        packed = (entry.path / name for name in (_ONE_FILE, _PACKED, SIF))
        file = next((one for one in packed if one.exists()), None)
        if file is None or (mounts and file.name == _ONE_FILE and one_file.can_mount()):
            return rootfs
        return self.unpacked(entry.id, file)

    def unpacked(self, digest: str, packed: Path) -> Path:
        """Return the tree of a packed file, unpacked by the first call; a SIF itself if there is no
        space.

        Args:
            digest: the identifier of the image.
            packed: a SIF, or a file that this store has packed.

        Raises:
            ImageError: it cannot be unpacked.
        """
        place = self._unpacked() / digest
        if place.is_dir():
            return place
        with self.lock(digest):
            if place.is_dir():
                return place
            os.makedirs(place.parent, mode=0o700, exist_ok=True)
            is_sif = packed.name not in (_PACKED, _ONE_FILE)
            if is_sif and not _has_space(packed, place.parent):
                return packed
            # the lock is held: an existing one is left by a killed process
            work = place.parent / f".new-{digest}"
            remove_tree(str(work))
            try:
                if packed.name == _PACKED:
                    with archive_errors(packed, place.parent):
                        layer = partial(opened, packed, place.parent)
                        unpack_layers(work, [layer])
                elif packed.name == _ONE_FILE:
                    one_file.unpack(packed, work)
                else:
                    unpack_sif(packed, work)
                os.rename(work, place)
            finally:
                remove_tree(str(work))
        return place

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a temporary directory on the disk of the trees.

        Directories of killed processes, whose locks are free, are removed first.

        Raises:
            StorageError: the store cannot be written.
        """
        with self._temporary(self._local() or self.root) as directory:
            yield directory

    def lock(self, name: str) -> FileLock:
        """Return a lock between all processes of this user.

        Raises:
            StorageError: the directory of the locks cannot be created.
        """
        directory = self.root / "locks"
        with self._writing():
            os.makedirs(directory, mode=0o700, exist_ok=True)
        return FileLock(directory / re.sub(r"[^A-Za-z0-9._-]", "_", name))

    @contextmanager
    def _temporary(self, parent: Path) -> Iterator[Path]:
        for left in parent.glob(".new-*"):
            # in use, or another process removed it
            with suppress(Timeout, FileNotFoundError), self._held(left):
                remove_tree(str(left))
        directory = parent / f".new-{uuid.uuid4().hex[:16]}"
        with self._held(directory):
            with self._writing():
                directory.mkdir(mode=0o700)
            try:
                yield directory
            finally:
                remove_tree(str(directory))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            why = f"the image store {self.root} cannot be written: {error}"
            raise write_error(f"{why}; set {VARIABLE} to another directory", error) from error

    @contextmanager
    def _held(self, directory: Path) -> Iterator[None]:
        """Hold the lock of a temporary directory: its holder is alive.

        Raises:
            Timeout: another process holds it.
        """
        with (lock := self.lock(directory.name)).acquire(timeout=0):
            try:
                yield
            finally:
                os.unlink(lock.lock_file)

    def _publish(self, directory: Path, digest: str, config: ImageConfig) -> None:
        rootfs = directory / ROOTFS
        sif = directory / SIF
        local = self._local()
        is_one_file = rootfs.is_dir() and one_file.is_wanted()
        if local is None and not is_one_file:
            self._place(directory, digest, config, rootfs if rootfs.is_dir() else sif)
            return
        with self._temporary(self.root) as shared:
            if is_one_file:
                kept = one_file.write(rootfs, shared / _ONE_FILE)
                (shared / ROOTFS).mkdir(mode=stat.S_IMODE(rootfs.stat().st_mode))
            elif rootfs.is_dir():
                kept = pack(rootfs, shared / _PACKED, "--use-compress-program=gzip -1")
            else:
                kept = Path(shutil.copyfile(sif, shared / SIF))
            self._place(shared, digest, config, kept, _size(rootfs) if rootfs.is_dir() else None)
        if local is not None and kept.name == _PACKED and not (local / digest).exists():
            os.rename(rootfs, local / digest)

    def _place(
        self,
        directory: Path,
        digest: str,
        config: ImageConfig,
        kept: Path,
        size_bytes: int | None = None,
    ) -> None:
        """Move the files of an image into the store, with the facts about it."""
        image = directory / "image"
        image.mkdir(mode=0o700)
        size = size_bytes if size_bytes is not None else _size(kept)
        facts = {"created": time.time(), "size_bytes": size, "config": config.to_oci()}
        os.rename(kept, image / kept.name)
        if kept.name == _ONE_FILE:
            os.rename(directory / ROOTFS, image / ROOTFS)  # where it is mounted
        (image / "meta.json").write_text(json.dumps(facts))
        # closed to others: an image may have set-user-ID programs, which belong to this user here
        os.makedirs(self.root / "images", mode=0o700, exist_ok=True)
        remove_tree(str(self.root / "images" / digest))  # left by a killed removal
        os.rename(image, self.root / "images" / digest)

    def _local(self) -> Path | None:
        """Return a directory on this machine's disk if the store is on a network file system."""
        is_remote = file_system(str(self.root)) in NETWORK_FILE_SYSTEMS
        return own_scratch("images") if is_remote else None

    def builds(self) -> Path:
        """Return the directory for layers of builds, which need not exist."""
        return (self._local() or self.root) / "builds"

    def _unpacked(self) -> Path:
        """Return the directory of trees whose packed files are elsewhere."""
        return self._local() or self.root / "unpacked"

    def _references(self) -> dict[str, str]:
        try:
            return dict(json.loads((self.root / "references.json").read_text()))
        except FileNotFoundError:
            return {}

    def _update_references(self, change: Callable[[dict[str, str]], object]) -> None:
        with self.lock("references"):
            names = self._references()
            change(names)
            write_atomic(
                self.root / "references.json", json.dumps(names, indent=1, sort_keys=True).encode()
            )


def unpack_or_keep(sif: Path, directory: Path) -> None:
    """Unpack a SIF to ``rootfs`` in a directory; where there is no space, copy it to ``image.sif``.

    Args:
        sif: the SIF.
        directory: the one that :meth:`Store.make` fills.

    Raises:
        ImageError: it cannot be unpacked.
    """
    if _has_space(sif, directory):
        unpack_sif(sif, directory / ROOTFS)
    else:
        shutil.copyfile(sif, directory / SIF)


def _has_space(sif: Path, place: Path) -> bool:
    """Return whether a SIF can be unpacked into a directory."""
    space = os.statvfs(place)
    return space.f_bavail * space.f_frsize >= sif.stat().st_size * _UNPACKED_FACTOR


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the files of a tree that this user can see."""
    if path.is_file():
        return path.stat().st_size
    found = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                found += os.lstat(os.path.join(folder, name)).st_size
    return found
