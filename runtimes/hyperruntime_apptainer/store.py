"""Store images on disk: SIF files by digest, their references, and unpacked copies for containers.

An image is written under a temporary name and renamed, under a lock. So concurrent processes make
one image, and a killed process leaves no incomplete one. The SIF is the image; the unpacked copy is
a cache: the kernel's overlay on a directory runs programs several times faster than two layers of
FUSE on a SIF.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
from filelock import FileLock, Timeout
from platformdirs import user_data_path

from hyperruntime.errors import ImageError, write_error
from hyperruntime.host.engine_findings import NETWORK_FILE_SYSTEMS, file_system
from hyperruntime.host.engine_limits import engine_call
from hyperruntime.host.inherited import is_own_directory
from hyperruntime.host.process import run_process
from hyperruntime.images.pull_errors import with_tag
from hyperruntime.storage.atomic import write_atomic
from hyperruntime_apptainer.args import NAME, environment
from hyperruntime_apptainer.records import remove_tree
from hyperruntime_apptainer.scratch import scratch_directory

VARIABLE = "HYPERRUNTIME_APPTAINER_IMAGES"
MOUNT_POINTS = ("dev", "etc", "proc", "run", "sys", "tmp", "var/tmp")
_UNPACKED_FACTOR = 6  # an unpacked copy takes at most about 6 times the space of its SIF


@attrs.frozen(kw_only=True)
class Entry:
    """One image of the store.

    Attributes:
        id: the digest of the image's source, 64 hexadecimal digits.
        references: the image's names.
        created: seconds since the epoch.
        workdir: the working directory of its commands.
        sif: the path of its SIF.
    """

    id: str
    references: tuple[str, ...]
    created: float
    workdir: str
    sif: Path


class Store:
    """The images of one user."""

    def __init__(self, root: Path | None = None) -> None:
        """Use a directory, by default this user's own; nothing is created yet."""
        named = os.environ.get(VARIABLE)
        self.root = root or (Path(named) if named else user_data_path("hyperruntime") / "apptainer")

    def entries(self) -> tuple[Entry, ...]:
        """Return all images."""
        names = self._references()
        found = []
        for meta in sorted(self.root.glob("images/*/meta.json")):
            try:
                facts = json.loads(meta.read_text())
            except FileNotFoundError:
                continue  # another process is removing it
            references = tuple(
                sorted(name for name, image in names.items() if image == meta.parent.name)
            )
            found.append(
                Entry(
                    id=meta.parent.name,
                    references=references,
                    created=float(facts["created"]),
                    workdir=str(facts["workdir"]),
                    sif=meta.parent / "image.sif",
                )
            )
        return tuple(found)

    def find(self, reference: str) -> Entry | None:
        """Return the image with exactly this reference or full identifier, or None."""
        wanted = with_tag(reference)
        digest = reference.removeprefix("sha256:")
        return next((e for e in self.entries() if wanted in e.references or e.id == digest), None)

    def make(
        self, digest: str, reference: str, fill: Callable[[Path], None], *, workdir: str = "/"
    ) -> str:
        """Give an image a reference and return its identifier; make the image first if it does not
        exist.

        Args:
            digest: the image's identifier.
            reference: the name to give it.
            fill: called with an empty directory to make the image; it writes ``image.sif`` there,
                and may also write ``rootfs``, the unpacked copy.
            workdir: the working directory of its commands.

        Raises:
            StorageError: the store cannot be written.
        """
        with self.lock(digest):
            if not (self.root / "images" / digest / "meta.json").exists():
                with self.scratch() as directory:
                    fill(directory)
                    self._publish(directory, digest, workdir)
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
                remove_tree(
                    str(entry.sif.parent),
                    *(str(place / entry.id) for place in self._unpacked_places()),
                )

    def unpacked(self, digest: str, sif: Path) -> Path:
        """Return the unpacked copy of an image, unpacked by the first call; the SIF if there is no
        space.

        Args:
            digest: the identifier of the image.
            sif: its SIF.

        Raises:
            ImageError: the SIF cannot be unpacked.
        """
        place = self._unpacked_places()[0] / digest
        if place.is_dir():
            return place
        with self.lock(digest):
            if place.is_dir():
                return place
            os.makedirs(place.parent, mode=0o700, exist_ok=True)
            space = os.statvfs(place.parent)
            if space.f_bavail * space.f_frsize < sif.stat().st_size * _UNPACKED_FACTOR:
                return sif
            # the lock is held: an existing one is left by a killed process
            work = place.parent / f".new-{digest}"
            remove_tree(str(work))
            try:
                unpack(sif, work)
                os.rename(work, place)
            finally:
                remove_tree(str(work))
        return place

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a temporary directory on the store's disk.

        Directories of killed processes, whose locks are free, are removed first.

        Raises:
            StorageError: the store cannot be written.
        """
        for left in self.root.glob(".new-*"):
            # in use, or another process removed it
            with suppress(Timeout, FileNotFoundError), self._held(left):
                remove_tree(str(left))
        directory = self.root / f".new-{uuid.uuid4().hex[:16]}"
        with self._held(directory):
            with self._writing():
                directory.mkdir(mode=0o700)
            try:
                yield directory
            finally:
                remove_tree(str(directory))

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
    def _writing(self) -> Iterator[None]:
        try:
            yield
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

    def _publish(self, directory: Path, digest: str, workdir: str) -> None:
        image = directory / "image"
        image.mkdir()
        os.rename(directory / "image.sif", image / "image.sif")
        (image / "meta.json").write_text(json.dumps({"created": time.time(), "workdir": workdir}))
        os.makedirs(self.root / "images", exist_ok=True)
        rootfs = directory / "rootfs"
        place = self._unpacked_places()[0] / digest
        if rootfs.is_dir() and place.parent.parent == self.root and not place.exists():
            os.makedirs(place.parent, mode=0o700, exist_ok=True)
            os.rename(rootfs, place)
        remove_tree(str(self.root / "images" / digest))  # left by a killed removal
        os.rename(image, self.root / "images" / digest)

    def _unpacked_places(self) -> tuple[Path, ...]:
        """Return the directories of unpacked copies, the preferred one (on a local disk) first.

        Scratch disks are shared: a directory there that another user owns or can write is not used.
        """
        own = self.root / "unpacked"
        on_scratch = Path(scratch_directory(), f"hyperruntime-{os.getuid()}-images")
        prefers_scratch = file_system(str(self.root)) in NETWORK_FILE_SYSTEMS
        if prefers_scratch:
            with suppress(OSError):  # it may exist: its owner and mode decide
                on_scratch.mkdir(mode=0o700)
        if not is_own_directory(str(on_scratch)):
            return (own,)
        return (on_scratch, own) if prefers_scratch else (own, on_scratch)

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


def make_mount_points(rootfs: Path) -> None:
    """Make the mount points of a container's own file systems, where an image lacks them."""
    for name in MOUNT_POINTS:
        path = rootfs / name
        if not path.is_dir() and not path.is_symlink():
            path.mkdir(parents=True)
            # whatever the umask is: other users need it
            path.chmod(0o1777 if name.endswith("tmp") else 0o755)


def make_usable(rootfs: Path) -> None:
    """Give this user all rights to unpacked files, and make the mount points that are missing."""
    run_process(["chmod", "-R", "u+rwX", str(rootfs)], cwd="/")
    make_mount_points(rootfs)


def sif_objects(sif: Path) -> list[list[str]]:
    """Return the columns of each line of ``apptainer sif list``; those of an object have its number
    first, then its place, and its type last.
    """
    args = ["apptainer", "sif", "list", str(sif)]
    with engine_call(NAME, "call") as timeout_s:
        listed = run_process(args, cwd="/", env=environment(os.environ), timeout_s=timeout_s)
    lines = listed.stdout.decode(errors="replace").splitlines()
    return [[column.strip() for column in line.split("|")] for line in lines]


def unpack(sif: Path, rootfs: Path) -> None:
    """Unpack a SIF, or a bare squashfs, as files of this user.

    Args:
        sif: the file to unpack.
        rootfs: the directory to create.

    Raises:
        ImageError: the file is not an image, or there is no space.
    """
    args = [
        "unsquashfs",
        "-no-progress",
        "-no-xattrs",
        "-offset",
        str(squashfs_offset(sif)),
        "-dest",
        str(rootfs),
    ]
    result = run_process([*args, str(sif)], cwd="/", env=environment(os.environ))
    # 2: a device or an owner could not be restored, which an ordinary user never can.
    if result.exit_code not in (0, 2) or not rootfs.is_dir():
        raise ImageError(f"{sif} cannot be unpacked: {result.error_text}")
    make_usable(rootfs)


def squashfs_offset(sif: Path) -> int:
    """Return the offset of the root file system in a SIF, in bytes.

    Raises:
        ImageError: the file holds no squashfs root file system.
    """
    with open(sif, "rb") as file:
        if file.read(4) == b"hsqs":
            return 0
    for columns in sif_objects(sif):
        if len(columns) >= 5 and columns[4].startswith("FS (Squashfs/*System"):
            return int(columns[3].partition("-")[0])
    raise ImageError(
        f"{sif} holds no squashfs root file system; make it again with `apptainer build`"
    )
