"""Images on disk: SIF files by digest, the references that name them, and unpacked copies that containers run from.

Every image is made under a temporary name and renamed, under a lock, so that two processes at once make one and a
killed one leaves nothing that looks like an image. A SIF is the image; a copy unpacked beside it is a cache, for the
kernel's own overlay on a directory runs programs several times faster than two layers of FUSE on a SIF.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
from filelock import FileLock, Timeout
from platformdirs import user_data_path

from hyperruntime.errors import ImageError, StorageError
from hyperruntime.host.process import run_process
from hyperruntime_apptainer.args import environment
from hyperruntime_apptainer.records import remove_tree
from hyperruntime_apptainer.scratch import NETWORK_FILE_SYSTEMS, claim, file_system, is_private, scratch_directory

VARIABLE = "HYPERRUNTIME_APPTAINER_IMAGES"
MOUNT_POINTS = ("dev", "etc", "proc", "run", "sys", "tmp", "var/tmp")
_UNPACKED_FACTOR = 6  # a directory takes at most about so many times the room of its SIF


@attrs.frozen(kw_only=True)
class Entry:
    """One image of the store.

    Attributes:
        id: the digest of what it was made from, 64 hexadecimal digits.
        references: its names.
        created: seconds since the epoch.
        workdir: where its commands start.
        sif: its file.
    """

    id: str
    references: tuple[str, ...]
    created: float
    workdir: str
    sif: Path


class Store:
    """The images of one user."""

    def __init__(self, root: Path | None = None) -> None:
        """Use a directory, by default the user's own; nothing is made yet."""
        named = os.environ.get(VARIABLE)
        self.root = root or (Path(named) if named else user_data_path("hyperruntime") / "apptainer")

    def entries(self) -> tuple[Entry, ...]:
        """Return every image."""
        names = self._references()
        found = []
        for meta in sorted(self.root.glob("images/*/meta.json")):
            try:
                facts = json.loads(meta.read_text())
            except FileNotFoundError:
                continue  # another process is removing it
            references = tuple(sorted(name for name, image in names.items() if image == meta.parent.name))
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
        """Return the image of exactly this reference, or of this whole identifier."""
        wanted, digest = with_tag(reference), reference.removeprefix("sha256:")
        return next((e for e in self.entries() if wanted in e.references or e.id == digest), None)

    def make(self, digest: str, reference: str, fill: Callable[[Path], None], *, workdir: str = "/") -> str:
        """Give an image a reference; make it first with ``fill(directory)`` if it is not here; return its identifier.

        ``fill`` leaves ``image.sif`` in the directory, and may leave ``rootfs``, the same unpacked.
        """
        with self.lock(digest):
            if not (self.root / "images" / digest / "meta.json").exists():
                with self.scratch() as directory:
                    fill(directory)
                    self._publish(directory, digest, workdir)
            self._update_references(lambda names: names.update({with_tag(reference): digest}))
        return digest

    def untag(self, entry: Entry, reference: str) -> None:
        """Take a reference from an image (an identifier: all of them); an image without any is removed."""
        wanted = {with_tag(reference)} if with_tag(reference) in entry.references else set(entry.references)
        with self.lock(entry.id):
            self._update_references(lambda names: [names.pop(name, None) for name in wanted])
            if entry.id not in self._references().values():  # another process may have given it one
                remove_tree(str(entry.sif.parent), *(str(place / entry.id) for place in self._unpacked_places()))

    def unpacked(self, digest: str, sif: Path) -> Path:
        """Return a directory with an image's files, unpacked when first asked for; the SIF if there is no room."""
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
            work = place.parent / f".new-{digest}"  # under the lock: what lies there a killed process left
            remove_tree(str(work))
            try:
                unpack(sif, work)
                os.rename(work, place)
            finally:
                remove_tree(str(work))
        return place

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a directory on the store's disk that is removed afterwards, whatever is in it.

        What a killed process left is removed first: its lock is free.

        Raises:
            StorageError: the store cannot be written.
        """
        for left in self.root.glob(".new-*"):
            self._remove_if_left(left)
        directory = self.root / f".new-{uuid.uuid4().hex[:16]}"
        with self._held(directory):
            try:
                directory.mkdir(mode=0o700)
            except OSError as error:
                why = f"the image store {self.root} cannot be written: {error}"
                raise StorageError(f"{why}; set {VARIABLE} to a directory of yours") from error
            try:
                yield directory
            finally:
                remove_tree(str(directory))

    def lock(self, name: str) -> FileLock:
        """Return a lock that other processes of this user see."""
        directory = self.root / "locks"
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{directory} cannot be made: {error}; set {VARIABLE}") from error
        return FileLock(directory / re.sub(r"[^A-Za-z0-9._-]", "_", name))

    @contextmanager
    def _held(self, directory: Path) -> Iterator[None]:
        """Hold the lock of a scratch directory, which says that its maker lives.

        Raises:
            Timeout: its maker lives.
        """
        with (lock := self.lock(directory.name)).acquire(timeout=0):
            try:
                yield
            finally:
                os.unlink(lock.lock_file)

    def _remove_if_left(self, directory: Path) -> None:
        try:
            with self._held(directory):
                remove_tree(str(directory))
        except (Timeout, FileNotFoundError):
            pass  # in use, or another process was faster

    def _publish(self, directory: Path, digest: str, workdir: str) -> None:
        image = directory / "image"
        image.mkdir()
        os.rename(directory / "image.sif", image / "image.sif")
        (image / "meta.json").write_text(json.dumps({"created": time.time(), "workdir": workdir}))
        os.makedirs(self.root / "images", exist_ok=True)
        rootfs, place = directory / "rootfs", self._unpacked_places()[0] / digest
        if rootfs.is_dir() and place.parent.parent == self.root and not place.exists():
            os.makedirs(place.parent, mode=0o700, exist_ok=True)
            os.rename(rootfs, place)
        remove_tree(str(self.root / "images" / digest))  # what a killed removal left
        os.rename(image, self.root / "images" / digest)

    def _unpacked_places(self) -> tuple[Path, ...]:
        """Return where unpacked copies are kept, first choice first: on a local disk.

        A scratch disk is everybody's: a directory there that another user made, or can write, is no place of ours.
        """
        own = self.root / "unpacked"
        on_scratch = Path(scratch_directory(), f"hyperruntime-{os.getuid()}-images")
        if file_system(str(self.root)) in NETWORK_FILE_SYSTEMS:
            return (on_scratch, own) if claim(on_scratch) else (own,)
        return (own, on_scratch) if is_private(on_scratch) else (own,)

    def _references(self) -> dict[str, str]:
        try:
            return dict(json.loads((self.root / "references.json").read_text()))
        except FileNotFoundError:
            return {}

    def _update_references(self, change: Callable[[dict[str, str]], object]) -> None:
        with self.lock("references"):
            names = self._references()
            change(names)
            temporary = self.root / "references.json.tmp"
            temporary.write_text(json.dumps(names, indent=1, sort_keys=True))
            os.replace(temporary, self.root / "references.json")


def with_tag(reference: str) -> str:
    """Return a reference with the tag it means: ``latest`` when it names neither tag nor digest."""
    name = reference.rpartition("/")[2]
    return reference if ":" in name or "@" in name else f"{reference}:latest"


def make_mount_points(rootfs: Path) -> None:
    """Make the directories that a container's own file systems are mounted on, where an image lacks them."""
    for name in MOUNT_POINTS:
        path = rootfs / name
        if not path.is_dir() and not path.is_symlink():
            path.mkdir(parents=True, mode=0o1777 if name.endswith("tmp") else 0o755)


def unpack(sif: Path, rootfs: Path) -> None:
    """Unpack a SIF, or a bare squashfs, as files of this user.

    Raises:
        ImageError: it is no image, or there is no room.
    """
    args = ["unsquashfs", "-no-progress", "-no-xattrs", "-offset", str(squashfs_offset(sif)), "-dest", str(rootfs)]
    result = run_process([*args, str(sif)], cwd="/", env=environment(os.environ))
    # 2: something could not be made as it was (a device, an owner), which an ordinary user's copy never can.
    if result.exit_code not in (0, 2) or not rootfs.is_dir():
        raise ImageError(f"{sif} cannot be unpacked: {result.error_text}")
    run_process(["chmod", "-R", "u+rwX", str(rootfs)], cwd="/")
    make_mount_points(rootfs)


def squashfs_offset(sif: Path) -> int:
    """Return where the root file system begins in a SIF. Source: ``apptainer sif list``, whose text it reads.

    Raises:
        ImageError: it is no image that holds one.
    """
    with open(sif, "rb") as file:
        if file.read(4) == b"hsqs":
            return 0
    result = run_process(["apptainer", "sif", "list", str(sif)], cwd="/", env=environment(os.environ))
    for line in result.stdout.decode(errors="replace").splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) >= 5 and columns[4].startswith("FS (Squashfs/*System"):
            return int(columns[3].partition("-")[0])
    raise ImageError(f"{sif} holds no squashfs root file system; make it again with `apptainer build`")
