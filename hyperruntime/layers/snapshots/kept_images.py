"""Snapshots of an engine that keeps files itself: images.

Each has the labels of its container, so its owner is known after a kill, and a label with its
facts. Its first tag ends with its runtime; a named one has a second tag, which stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from filelock import FileLock

from hyperruntime.driver import ContainerRecord
from hyperruntime.errors import EngineError, HyperRuntimeError, SpecError, StorageError, write_error
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.owner import OwnerIdentity, owned_directory
from hyperruntime.host.temporary import STEP
from hyperruntime.layers.archive import write_archive
from hyperruntime.layers.config import ImageConfig
from hyperruntime.layers.snapshots.snapshot import (
    IMAGE,
    FileChange,
    Snapshot,
    Snapshots,
    kept_images,
)
from hyperruntime.logs import get_logger
from hyperruntime.settings.image_names import NAMED_SNAPSHOTS, UNNAMED_SNAPSHOTS

log = get_logger(__name__)

# returns the labels of a new snapshot from what the engine knows about the image below
Labels = Callable[[Mapping[str, Any]], Mapping[str, str]]
FACTS = "io.hyperruntime.snapshot"  # the label of all of them
SNAPSHOTS = UNNAMED_SNAPSHOTS  # the repository of those that end
_CHUNK_BYTES = 1 << 20
# what engines make in each container
_MADE = re.compile(
    r"/(dev|proc|sys|\.dockerenv|run/(\.containerenv|hyperruntime)|(usr/)?sbin/docker-init|"
    r"etc/(hostname|hosts|mtab|resolv\.conf))(/|$)"
)
_IDENTIFIER = re.compile(r"(sha256:)?[0-9a-f]{64}")
_LATEST = float(1 << 37)  # seconds since the epoch; calendars of programs end later
MOST_LAYERS = 100  # an image with as many gets a child with one: engines take 125


class KeptImages:
    """The images that one driver keeps for snapshots. Safe to use from many threads."""

    def __init__(self, remove: Callable[[Sequence[str]], None]) -> None:
        """Keep nothing yet.

        Args:
            remove: removes images by their names; each is removed before the image below it.
        """
        self._remove = remove
        self._kept: list[str] = []
        self._identifiers: list[str] = []

    def keep(self, commit: Callable[[str], str]) -> tuple[str, ...]:
        """Make an image of a container's files; return what a snapshot has as its layers.

        Args:
            commit: makes the image with a name, and returns its identifier.

        Raises:
            StorageError: it cannot be made.
        """
        # names sort as the images were made: those below come first
        name = f"{SNAPSHOTS}:{time.time_ns():x}-{secrets.token_hex(4)}"
        self._kept.append(name)
        try:
            identifier = commit(name)
        except EngineError as error:
            raise StorageError(f"the snapshot cannot be kept: {error}") from error
        self._identifiers.append(identifier)
        kept_images.get().add(identifier)
        return (identifier,)

    def close(self) -> None:
        """Remove all images; what cannot be removed is logged, and left to `hyperrun prune`."""
        kept, self._kept = self._kept, []
        kept_images.get().difference_update(self._identifiers)
        if not kept:
            return
        try:
            self._remove(newest_first(kept))
        except HyperRuntimeError as error:
            log.warning("snapshots not removed", why=str(error), next_step="`hyperrun prune`")


def newest_first(names: Iterable[str]) -> list[str]:
    """Return the names of snapshots' images, those above before those below."""
    return sorted(names, reverse=True)


def of_dead_owners(
    found: Iterable[tuple[str, float, dict[str, str]]],
) -> tuple[ContainerRecord, ...]:
    """Return the snapshots whose owner is dead as records, those above before those below.

    Args:
        found: for each image its name, the time in seconds when it was made, and its labels.
    """
    # engines list an image once for each of its names
    by_name = {name: (created, labels) for name, created, labels in found}
    records = (
        ContainerRecord(id=name, image=name, state="dead", created=created, labels=labels)
        for name, (created, labels) in sorted(by_name.items(), reverse=True)
        if name.startswith(SNAPSHOTS)  # the user may have given it another name too
        if (owner := OwnerIdentity.from_labels(labels)) is not None and owner.state() == "dead"
    )
    return tuple(records)


def facts(image: str, repositories: Sequence[str], below: Mapping[str, Any]) -> dict[str, str]:
    """Return the label of a new snapshot.

    Args:
        image: the image of its container's spec.
        repositories: those of the snapshot.
        below: what the engine knows about the image over which the container runs.
    """
    known = _facts(below)
    base = known["base"] if known.get("image") == image else below["Id"]
    found = {"image": image, "base": base, "created": time.time(), "repositories": repositories}
    # hexadecimal, because engines read quotes and dollar signs of a label each in another way
    return {FACTS: json.dumps(found).encode().hex()}


def _facts(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of a snapshot from what the engine knows about its image; none if somebody
    else made the image.
    """
    labels = (found.get("Config") or {}).get("Labels") or {}
    try:
        known = json.loads(bytes.fromhex(labels.get(FACTS, "")))
        are_facts = (
            isinstance(known["image"], str)
            and _IDENTIFIER.fullmatch(known["base"]) is not None
            and isinstance(known["created"], float)
            and 0 <= known["created"] < _LATEST
            and isinstance(known["repositories"], list)
            and all(isinstance(one, str) for one in known["repositories"])
        )
    except (KeyError, RecursionError, TypeError, ValueError):
        return {}
    return dict(known) if are_facts else {}


class EngineImages(Protocol):
    """What an engine does for the images of snapshots."""

    def names(self, repository: str) -> Iterable[str]:
        """Return the names in a repository."""
        ...

    def inspect(self, reference: str) -> Mapping[str, Any] | None:
        """Return what the engine knows about an image; None if there is none."""
        ...

    def tag(self, identifier: str, name: str) -> None:
        """Give an image a further name."""
        ...

    def users(self, identifier: str) -> Iterable[str]:
        """Return the names of the containers of an image."""
        ...

    def export(self, identifier: str, tar: Path, labels: Mapping[str, str]) -> None:
        """Write all files of an image to a tar, by a container with labels."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Remove names, in this order, and each image with its last one.

        The last name of a named snapshot stays, with an error, while a container uses the image.
        """
        ...


class ImageSnapshots(Snapshots):
    """The named snapshots of an engine that keeps files itself: tags of its images."""

    def __init__(self, engine: str, images: EngineImages) -> None:
        """Ask nothing yet.

        Args:
            engine: the driver's name.
            images: the engine's images.
        """
        self._engine = engine
        self._images = images
        self._repository = (
            f"{NAMED_SNAPSHOTS}/{os.getuid()}"  # all users of a daemon have one store
        )

    def list(self, name: str | None = None) -> tuple[Snapshot, ...]:
        """Return those with a name, in the order of their names."""
        every = name is None
        names = self._images.names(self._repository) if every else [self._tag(str(name))]
        return tuple(one for tag in sorted(set(names)) for one in self._read(tag))

    def keep(self, snapshot: Snapshot, name: str) -> Snapshot:
        """Give a name to the files of a snapshot."""
        snapshot.check_fits(self._engine, snapshot.image)
        with _locked():  # a tag would move to another image
            self.check_new(name)
            self._images.tag(_reference(snapshot), self._tag(name))
        return self.find(name)

    def remove(self, name: str) -> None:
        """Remove the one with a name."""
        with _locked():  # the name may be given again
            for user in self._images.users(_reference(self.find(name))):
                raise EngineError(f"snapshot {name!r} is used by the container {user}")
            self._images.remove([self._tag(name)])

    def diff(self, old: Snapshot | None, new: Snapshot) -> tuple[FileChange, ...]:
        """Return what changed from an older snapshot, or from the image."""
        was = self._base(new) if old is None else _reference(old)
        becomes = _reference(new)
        if was == becomes:
            return ()
        return tuple(_changes(self._files(was), self._files(becomes)))

    def save(self, snapshot: Snapshot, reference: str, archive: Path) -> None:
        """Write an image with the files of a snapshot."""
        config = ImageConfig.from_oci(self._known(self._base(snapshot))["Config"])
        with self._exported(_reference(snapshot)) as tar:
            write_archive(archive, reference, tar, config)

    def _tag(self, name: str) -> str:
        return f"{self._repository}:{name}"

    def _read(self, tag: str) -> Iterator[Snapshot]:
        found = self._images.inspect(tag)
        if found is not None and (known := _facts(found)):
            identifier = found["Id"].removeprefix(IMAGE)
            yield Snapshot(
                id=identifier[:12],
                engine=self._engine,
                image=known["image"],
                layers=(f"{IMAGE}{identifier}",),
                created=known["created"],
                name=tag.removeprefix(f"{self._repository}:"),
                repositories=tuple(known["repositories"]),
            )

    def _known(self, reference: str) -> Mapping[str, Any]:
        if (found := self._images.inspect(reference)) is None:
            raise SpecError("base", reference, "a snapshot whose image is still here")
        return found

    def _base(self, snapshot: Snapshot) -> str:
        """Return the image of which a snapshot was made first."""
        reference = _reference(snapshot)
        return str(_facts(self._known(reference)).get("base", reference))

    def _files(self, reference: str) -> dict[str, tuple[object, ...]]:
        with self._exported(reference) as tar:
            return _files_in(tar)

    @contextmanager
    def _exported(self, reference: str) -> Iterator[Path]:
        """Yield a tar with all files of an image."""
        with owned_directory() as place:
            try:
                tar = Path(place, "files.tar")
                self._images.export(reference, tar, OwnerIdentity.current().to_labels())
            except OSError as error:
                why = f"{place} cannot be written: {error}; free space, or {STEP}"
                raise write_error(why, error) from error
            yield tar


@contextmanager
def _locked() -> Iterator[None]:
    """Hold the lock under which one process of this user at a time gives and removes names."""
    place = cache_directory()
    lock = FileLock(place / "snapshots.lock")
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        why = f"{place} cannot be written: {error}; set XDG_CACHE_HOME to another directory"
        raise write_error(why, error) from error
    try:
        yield
    finally:
        lock.release()


def _reference(snapshot: Snapshot) -> str:
    return "".join(snapshot.layers) or snapshot.image


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[FileChange]:
    for path in sorted(before.keys() | after.keys(), key=lambda one: one.split("/")):
        if path not in before:
            yield FileChange(kind="added", path=path)
        elif path not in after:
            yield FileChange(kind="removed", path=path)
        elif before[path] != after[path]:
            yield FileChange(kind="changed", path=path)


def _files_in(tar: Path) -> dict[str, tuple[object, ...]]:
    """Return what counts about each file of a tar, by path."""
    found: dict[str, tuple[object, ...]] = {}
    with tarfile.open(tar) as archive:
        for one in archive:
            path = os.path.normpath(f"/{one.name}")
            if path == "/" or _MADE.match(path):
                continue
            if one.islnk():
                found[path] = found.get(os.path.normpath(f"/{one.linkname}"), ())
                continue
            attributes = [item for item in one.pax_headers.items() if "xattr" in item[0]]
            owner = (one.uid, one.gid, one.mode)
            device = (one.devmajor, one.devminor)
            counts = (one.type, *owner, *device, one.linkname, *sorted(attributes))
            if not one.isdir():
                content = archive.extractfile(one) if one.isfile() else None
                digest = _digest(content) if content else b""
                counts = (*counts, one.mtime, digest)
            found[path] = counts
    return found


def _digest(content: IO[bytes]) -> bytes:
    digest = hashlib.sha256()
    while chunk := content.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.digest()
