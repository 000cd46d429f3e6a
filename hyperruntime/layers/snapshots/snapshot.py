"""Snapshots: the files of a container at one instant."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import closing
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import attrs

from hyperruntime import registry
from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.images.store import new_archive

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@attrs.frozen(kw_only=True)
class FileChange:
    """One difference between the files of two snapshots.

    Attributes:
        kind: ``added``, ``removed`` or ``changed``: its kind, content, mode, owner, attributes, or
            time. The time of a directory does not count.
        path: absolute path in the container.

    Example:
        >>> print(hr.FileChange(kind="added", path="/prepared"))
        added /prepared
    """

    kind: Literal["added", "changed", "removed"]
    path: str

    def __str__(self) -> str:
        """Return the kind and the path."""
        return f"{self.kind} {self.path}"


IMAGE = "sha256:"  # what the identifier of an image begins with
# the identifiers of those whose runtime is open
kept_images: PerProcess[set[str]] = PerProcess(set)


@attrs.frozen(kw_only=True)
class Snapshot:
    """The files of a container at one instant; made by :meth:`Container.snapshot`.

    It belongs to the runtime whose container it shows, and ends with it, unless it has a name.

    Attributes:
        id: unique on this machine.
        engine: the engine that has it.
        image: the reference of its image, which may name another image later.
        layers: directories of this machine that lie over each other, the highest first; the last
            one is the tree of the image. On Podman and Docker, the identifier of an image with all
            files. Empty: the image as it is.
        created: seconds since the epoch.
        name: its name, or "".
        repositories: repositories that were put into the container, for git.

    Example:
        >>> snapshot = hr.Snapshot(id="1", engine="bubblewrap", image="b", layers=(), created=0.0)
        >>> snapshot.image
        'b'
    """

    id: str
    engine: str
    image: str
    layers: tuple[str, ...]
    created: float
    name: str = ""
    repositories: tuple[str, ...] = ()

    def diff(self, other: Snapshot | None = None) -> tuple[FileChange, ...]:
        """Return what changed since another snapshot, by path.

        Each path is listed, also those below a directory that was added or removed.

        Args:
            other: an earlier snapshot of the same image; None means the image.

        Raises:
            SpecError: one of them is gone, or the other is of another engine or image.
            UnsupportedOptionError: the engine cannot compare them.

        Example:
            >>> with runtime.container(spec) as container:
            ...     _ = container.exec(["mkdir", "-p", "/prepared/deep"])
            ...     print(*container.snapshot().diff(), sep=", ")
            added /prepared, added /prepared/deep
        """
        for one in (self, other or self):
            one.check_fits(self.engine, self.image)
        with closing(registry.load_driver(self.engine)) as driver:
            return snapshots_of(driver).diff(other, self)

    def save(
        self, archive: str | os.PathLike[str], reference: str = "", *, force: bool = False
    ) -> None:
        """Write an image with its files, in the format of ``docker save``: every engine loads it.

        The image has one layer, and the configuration of the snapshot's image.

        Args:
            archive: the file to write.
            reference: the name of the new image; "" means ``localhost/NAME:latest``, with the
                snapshot's name or id.
            force: replace an existing file.

        Raises:
            SpecError: the file exists and ``force`` is false, or the snapshot is gone.
            ImageError: its files cannot be packed.
            StorageError: the file cannot be written.
            UnsupportedOptionError: the engine cannot save it.

        Example:
            >>> snapshot.save("prepared.tar", "localhost/prepared:1")  # doctest: +SKIP
        """
        self.check_fits(self.engine, self.image)
        reference = reference or f"localhost/{(self.name or self.id).lower()}:latest"
        with (
            closing(registry.load_driver(self.engine)) as driver,
            new_archive(archive, force=force) as partial,
        ):
            snapshots_of(driver).save(self, reference, partial)

    @property
    def is_image(self) -> bool:
        """Whether the engine keeps its files, as an image."""
        return "".join(self.layers).startswith(IMAGE)

    def check_fits(self, engine: str, image: str) -> None:
        """Check that a container of an engine and an image can have these files.

        Raises:
            SpecError: it cannot.
        """
        if (engine, image) != (self.engine, self.image):
            allowed = f"one of {engine} and of image {image!r}"
            raise SpecError("base", f"{self.engine}, {self.image!r}", allowed)
        for one in self.layers:
            if not (self._is_kept() if self.is_image else os.path.isdir(one)):
                allowed = "a snapshot whose runtime is open, or one with a name"
                if one == self.layers[-1] != self.layers[0]:
                    allowed = f"one whose image is still here; its files {one} are gone"
                raise SpecError("base", self.name or self.id, allowed)

    def _is_kept(self) -> bool:
        """Return whether its image is one of an open runtime of this process, or has its name."""
        if not kept_images.get().isdisjoint(self.layers):
            return True
        with closing(registry.load_driver(self.engine)) as driver:
            return self.name != "" and self in snapshots_of(driver).list(self.name)


class Snapshots(Protocol):
    """The named snapshots of an engine and this user: ``runtime.snapshots``.

    Example:
        >>> with runtime.container(spec) as container:
        ...     _ = container.exec(["touch", "/prepared"])
        ...     _ = container.snapshot(name="prepared")
        >>> with runtime.container(spec, base="prepared") as other:
        ...     other.exec(["test", "-e", "/prepared"]).exit_code
        0
        >>> [one.name for one in runtime.snapshots.list()]
        ['prepared']
        >>> runtime.snapshots.remove("prepared")
    """

    def list(self, name: str | None = None) -> tuple[Snapshot, ...]:
        """Return those with a name, in the order of their names.

        Args:
            name: the name of the only one that is asked for.
        """
        ...

    def find(self, name: str) -> Snapshot:
        """Return the one with a name.

        Raises:
            SpecError: there is none.
        """
        if _NAME.fullmatch(name) and (found := self.list(name)):
            return found[0]
        allowed = "no snapshot has this name; `hyperrun snapshot list` shows those that exist"
        raise SpecError("name", name, allowed)

    def check_new(self, name: str) -> None:
        """Check that a snapshot can get a name.

        Raises:
            SpecError: the name is not usable, or a snapshot has it.
        """
        if not _NAME.fullmatch(name):
            allowed = "use letters, digits and `._-`, at most 100, with a letter or digit first"
            raise SpecError("name", name, allowed)
        if self.list(name):
            why = "a snapshot has this name; use another, or `hyperrun snapshot remove` it"
            raise SpecError("name", name, why)

    def keep(self, snapshot: Snapshot, name: str) -> Snapshot:
        """Give a name to the files of a snapshot: they stay until :meth:`remove`.

        Other processes of this user find them by the name. A kill leaves all of them, or nothing.

        Raises:
            SpecError: the name is not usable, or a snapshot has it.
            StorageError: they cannot be written.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove the one with a name.

        Raises:
            SpecError: there is none.
            EngineError: a container uses it.
        """
        ...

    def diff(self, old: Snapshot | None, new: Snapshot) -> tuple[FileChange, ...]:
        """Return what changed; see :meth:`Snapshot.diff`."""
        ...

    def save(self, snapshot: Snapshot, reference: str, archive: Path) -> None:
        """Write an image; see :meth:`Snapshot.save`."""
        ...


@runtime_checkable
class KeepsSnapshots(Protocol):
    """A driver whose snapshots can have names, and be compared and saved."""

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots of this user."""
        ...


def snapshots_of(driver: object) -> Snapshots:
    """Return the named snapshots of a driver.

    Raises:
        UnsupportedOptionError: it has none.
    """
    if not isinstance(driver, KeepsSnapshots):
        why = "its snapshots have no names, and cannot be compared or saved; use another engine"
        raise UnsupportedOptionError(getattr(driver, "name", "this engine"), "snapshots", why)
    return driver.snapshots


def new_snapshot(
    engine: str, image: str, layers: tuple[str, ...], repositories: tuple[str, ...] = ()
) -> Snapshot:
    """Return a snapshot with a new id."""
    return Snapshot(
        id=secrets.token_hex(6),
        engine=engine,
        image=image,
        layers=layers,
        created=time.time(),
        repositories=repositories,
    )
