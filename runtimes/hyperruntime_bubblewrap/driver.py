"""The bubblewrap driver: for machines without a container engine, and for ordinary users only."""

from __future__ import annotations

import os

from hyperruntime.driver import Driver, Image, Launch
from hyperruntime.errors import HyperRuntimeError, SpecError, UnsupportedOptionError
from hyperruntime.host.process import find_program
from hyperruntime.host.seccomp import write_filter
from hyperruntime.layers.images import ImageSource, StoredImages
from hyperruntime.layers.namespace import Job, Layers
from hyperruntime.layers.overlays import FUSE
from hyperruntime.layers.sandboxes import Means, SandboxContainer, SandboxDriver
from hyperruntime.layers.snapshots.freezing import copy_files, merge_layers
from hyperruntime.layers.snapshots.merging import is_of_fuse
from hyperruntime_bubblewrap.args import IMAGE, NAME, make_job, refuse
from hyperruntime_bubblewrap.probe import Probe, cached_probe, findings


class BubblewrapImages(StoredImages):
    """The images of this user's store, and ``host``: this machine's programs."""

    def exists(self, reference: str) -> bool:
        """Return whether a reference names the host's userland, or an image of the store."""
        return reference == IMAGE or super().exists(reference)

    def list(self) -> tuple[Image, ...]:
        """Return the host's userland, and the images of the store."""
        return (Image(id=IMAGE, references=(IMAGE,), size_bytes=0, created=0), *super().list())


class BubblewrapContainer(SandboxContainer):
    """A container whose main process is the shell attached to ``bwrap``."""

    def __init__(
        self,
        launch: Launch,
        source: ImageSource | None,
        means: Means,
        found: Probe,
        filter_path: str,
    ) -> None:
        """Start the container; see :class:`~hyperruntime.layers.sandboxes.SandboxContainer`.

        Args:
            launch: the container to start.
            source: the image's files; None means this machine's programs.
            means: what it is started with.
            found: the result of the probe.
            filter_path: file of the seccomp filter, or "" for none.
        """
        self._source = source
        self._found = found
        self._filter_path = filter_path
        super().__init__(launch, source, means)

    def _make_files(self) -> Layers | None:
        if self._source is None:
            return None
        storage = self._found.storage
        if storage != "copy" and any(
            is_of_fuse(one) != (storage == FUSE) for one in self._trees[:-1]
        ):
            why = f"the snapshot needs an overlay, but of another kind than here ({storage})"
            raise UnsupportedOptionError(NAME, "base", f"{why}; see `hyperrun doctor`")
        if storage != "copy":
            return self._make_layers(find_program(FUSE) or "" if storage == FUSE else "")
        if len(self._trees) > 1:
            merge_layers(self._trees, (), self.copied, users=self._means.users)
        else:
            os.mkdir(self.copied)
            copy_files(f"{self._trees[0]}/.", self.copied, users=self._means.users)
        return None

    def _job(self) -> Job:
        return make_job(
            self._launch,
            self._source,
            self._files,
            filter_path=self._filter_path,
            layers=self._layers,
            users=self._means.users,
        )

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered."""
        if "Can't chdir to" in error_text:
            workdir = self._launch.spec.workdir
            return SpecError(
                "workdir", workdir, "a directory that exists in the image or in a mount"
            )
        return super().explain_start_failure(error_text, user)


class BubblewrapDriver(SandboxDriver[Probe, BubblewrapImages]):
    """Driver for bubblewrap 0.8 and newer."""

    name = NAME

    def __init__(self) -> None:
        """Create a driver; the probe runs when it is first needed."""
        super().__init__(cached_probe, findings, BubblewrapImages(NAME))
        self._private_dir = ""
        self._filter: str | None = None

    def open(self, private_dir: str) -> None:
        """Set the directory that takes the seccomp filter."""
        self._private_dir = private_dir

    def _has_users(self) -> bool:
        return self._probe.get().users

    def launch(self, launch: Launch) -> BubblewrapContainer:
        """Start a container with its shell attached.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            ImageNotFoundError: the image is not on this machine.
            StorageError: the container's files cannot be written.
            EngineUnavailableError: bubblewrap cannot run.
        """
        found = self._probe.get()
        refuse(launch.spec, found.pids, users=found.users)
        image = launch.spec.image
        tree = launch.layers[-1] if launch.layers else ""
        source = None if image == IMAGE else self.images.source(image, tree, mounts=True)
        if self._filter is None:
            self._filter = write_filter(self._private_dir)
        means = self._means(users=found.users)
        return BubblewrapContainer(launch, source, means, found, self._filter)


_: type[Driver] = BubblewrapDriver
