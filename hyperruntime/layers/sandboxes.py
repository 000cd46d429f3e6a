"""Base classes of the drivers that start sandboxes through a holder, over layers that it mounts."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

import attrs

from hyperruntime.driver import ContainerRecord, Finding, Launch
from hyperruntime.errors import (
    EngineUnavailableError,
    HyperRuntimeError,
    ImageError,
    UnsupportedOptionError,
    write_error,
)
from hyperruntime.host.disk import measure
from hyperruntime.host.engine_driver import EngineDriver, ShellContainer
from hyperruntime.host.engine_program import ALL_IDS, ONE_ID, start_refusal, unknown_failure
from hyperruntime.host.probe_cache import P
from hyperruntime.host.process import last_line
from hyperruntime.host.temporary import STEP, scratch_directory
from hyperruntime.layers.images import ImageSource, StoredImages
from hyperruntime.layers.namespace import Job, Layers, Namespace, SandboxShell
from hyperruntime.layers.one_file import mount_of
from hyperruntime.layers.overlays import COPY, FUSE, mounting_program
from hyperruntime.layers.records import Records, discard
from hyperruntime.layers.snapshots.freezing import (
    KeptLayers,
    Users,
    copy_files,
    merge_layers,
    without_kept,
)
from hyperruntime.layers.snapshots.merging import FUSE as OF_FUSE
from hyperruntime.layers.snapshots.merging import is_of_fuse
from hyperruntime.layers.snapshots.named import LayeredSnapshots

Images = TypeVar("Images", bound=StoredImages)


@attrs.frozen(kw_only=True)
class Means:
    """What every container of a driver is started with.

    Attributes:
        engine: the driver's name.
        namespace: starts its program.
        users: whether this user's subordinate ids are users of it; None: it starts without user
            namespaces.
        records: the records of the engine's containers.
        kept: keeps layers of snapshots.
        place: directory of the containers' files.
        distrust: called if a container does not start and the probe may be the reason.
    """

    engine: str
    namespace: Namespace
    users: Users
    records: Records
    kept: KeptLayers
    place: str
    distrust: Callable[[], None]


class SandboxContainer(ShellContainer):
    """A container whose main process is the shell attached to the program of a job.

    Attributes:
        layer: the host directory that takes its changes to the image's files.
        copied_bytes: see :class:`~hyperruntime.driver.CopiesImage`.
        shell: the shell, of a job of the holder.
    """

    shell: SandboxShell

    copied_bytes = 0

    def __init__(self, launch: Launch, source: ImageSource | None, means: Means) -> None:
        """Start the container without waiting for its shell to answer.

        Args:
            launch: the container to start.
            source: the image's files and configuration; None means this machine's programs.
            means: what it is started with.

        Raises:
            StorageError: the container's files or its record cannot be written.
            EngineUnavailableError: the sandbox cannot be started.
        """
        self.id = launch.name
        self._launch = launch
        env = {} if source is None else source.env
        if means.users:
            self.user = launch.spec.user or ("" if source is None else source.user)
            self.home = launch.spec.env.get("HOME") or env.get("HOME", "")
        self._means = means
        self._trees = () if source is None else launch.layers or (source.files,)
        self._files = f"{means.place}/{launch.name}-{secrets.token_hex(4)}"
        self.layer = f"{self._files}/upper"
        try:
            holder = means.namespace.pid()
        except EngineUnavailableError:
            means.distrust()
            raise
        # the record comes first: after a kill it leads to the files
        self._record = means.records.write(
            self.id,
            launch.spec.image,
            ":".join(self._trees),
            launch.labels,
            holder,
            self._files,
        )
        try:
            try:
                os.mkdir(self._files, 0o700)
                self._layers = self._make_files()
            except OSError as error:
                raise write_error(
                    f"{self._files} cannot be written: {error}; free space, or {STEP}", error
                ) from error
            job = self._job()
            if isinstance(launch.joins, SandboxContainer):
                job = attrs.evolve(job, joins=launch.joins.shell.job)
            self.shell = means.namespace.start(job)
        except BaseException:
            discard(self._files, means.records.path_of(self.id))
            raise

    @property
    def copied(self) -> str:
        """The directory of all its files, where no overlay can be mounted."""
        return f"{self._files}/root"

    def _make_files(self) -> Layers | None:
        """Make its files in its directory; return the layers to mount, or None."""
        raise NotImplementedError

    def _copy(self) -> None:
        """Copy the files of its image, or merge its layers, where no overlay can be mounted."""
        if len(self._trees) > 1:
            merge_layers(self._trees, (), self.copied, users=self._means.users)
        else:
            os.mkdir(self.copied)
            copy_files(f"{self._trees[0]}/.", self.copied, users=self._means.users)
        self.layer = self.copied
        if self._launch.spec.limits.disk_bytes is not None:
            self.copied_bytes = measure((self.copied,), None, sys.maxsize).used_bytes

    def _job(self) -> Job:
        """Return its program."""
        raise NotImplementedError

    def _make_tree(self, storage: str) -> Layers | None:
        """Make its files from those of its image; return the layers to mount, or None for a copy.

        Args:
            storage: as :func:`~hyperruntime.layers.overlays.storage_kind` returns it.

        Raises:
            UnsupportedOptionError: it starts from a snapshot that needs another kind of overlay.
        """
        if storage != COPY:
            if any(is_of_fuse(one) != (storage == FUSE) for one in self._trees[:-1]):
                why = f"the snapshot needs an overlay, but of another kind than here ({storage})"
                raise UnsupportedOptionError(
                    self._means.engine, "base", f"{why}; see `hyperrun doctor`"
                )
            return self._make_layers(mounting_program(storage))
        self._copy()
        return None

    def _make_layers(self, program: str = "") -> Layers:
        """Return its layers, with one of its own for its changes; ``program`` is one of FUSE that
        mounts them.
        """
        work = f"{self._files}/work"
        os.mkdir(self.layer)
        # the mode of `/` in the container, whatever the umask is
        os.chmod(self.layer, stat.S_IMODE(os.stat(self._trees[0]).st_mode) | stat.S_IRWXU)
        os.mkdir(work)
        place = self._means.place
        return Layers(
            directory=place,
            layers=tuple(one.removeprefix(f"{place}/") for one in self._trees),
            upperdir=self.layer.removeprefix(f"{place}/"),
            workdir=work.removeprefix(f"{place}/"),
            program=program,
            image=mount_of(self._trees[-1]),
            at=self.layer,  # each directory costs time; only the sandbox sees the mount
        )

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered."""
        text = last_line(error_text, r"(FATAL|ERROR|WARNING):\s+")
        spec = self._launch.spec
        if "is a link" in text or "too many links" in text:
            return ImageError(f"image {spec.image!r} cannot be started: {text}")
        full = f"{self._means.place} is full: {text}; free space there, or {STEP}"
        if (refusal := start_refusal(error_text, spec, user, full)) is not None:
            return refusal
        self._means.distrust()
        why = text or self._means.namespace.error_text
        return unknown_failure(self._means.engine, why, self.shell)

    def freeze(self, *, running: bool, repositories: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Keep the container's files; see :class:`~hyperruntime.driver.Freezes`."""
        if not (self._trees and os.path.isdir(self._trees[-1])):
            why = f"the image {self._launch.spec.image!r} is not a tree of files; use another image"
            raise UnsupportedOptionError(self._means.engine, "snapshot", why)
        changes = self.layer if self._layers else self.copied
        lower = self._trees if self._layers else ()  # copies have all files
        layers = self._means.kept.freeze(
            self._record, changes, lower, running=running, users=self._means.users
        )
        if self._layers and self._layers.program:
            Path(layers[0]).with_name(OF_FUSE).touch()
        return layers

    def remove(self) -> None:
        """End and remove the container at once."""
        self.shell.close()
        self._means.records.end(self._record)


class SandboxDriver(EngineDriver[P], Generic[P, Images]):
    """A driver whose containers are :class:`SandboxContainer`.

    Attributes:
        images: the images of this user.
    """

    def __init__(
        self,
        probe: Callable[[], tuple[P, bool]],
        findings: Callable[[], Iterable[Finding]],
        images: Images,
    ) -> None:
        """Start nothing; see :class:`~hyperruntime.host.engine_driver.EngineDriver`."""
        super().__init__(probe, findings)
        self.images = images
        self._records = Records(self.name)
        self._kept = KeptLayers(self._records)
        self._namespace = Namespace(self.name, ALL_IDS)
        self._alone = Namespace(self.name, ONE_ID)
        self._plain = Namespace(self.name, ())
        self._place = ""

    def _means(self, *, users: Users) -> Means:
        """Return what a container is started with.

        Args:
            users: see :class:`Means`.
        """
        self._place = self._place or scratch_directory()
        namespaces = {True: self._namespace, False: self._alone, None: self._plain}
        return Means(
            engine=self.name,
            namespace=namespaces[users],
            users=users,
            records=self._records,
            kept=self._kept,
            place=self._place,
            distrust=self._probe.distrust,
        )

    @property
    def snapshots(self) -> LayeredSnapshots:
        """The named snapshots of this user."""
        return LayeredSnapshots(self._records, self.images.config, self._users)

    def _users(self) -> Users:
        """Return the users of containers, as in :class:`Means`."""
        raise NotImplementedError

    def drop(self, layers: tuple[str, ...]) -> bool:
        """Remove the highest layer of a snapshot; see :class:`~hyperruntime.driver.DropsLayers`."""
        return self._kept.drop(layers)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this user's containers, and what is left of snapshots whose owner is dead."""
        return without_kept(self._records.containers())

    def remove_container(self, container_id: str) -> None:
        """End and remove a container; do nothing if it does not exist.

        Raises:
            EngineError: it runs on another machine, or does not end.
        """
        self._records.remove(container_id)

    def close(self) -> None:
        """End the holders, which end all containers, and remove the layers of snapshots."""
        for one in (self._namespace, self._alone, self._plain):
            one.close()
        self._kept.close()
