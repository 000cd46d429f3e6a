"""The Apptainer driver: runs as an ordinary user, without a daemon or an instance, and without a
setuid program where the kernel allows user namespaces.
"""

from __future__ import annotations

import os
import re

import attrs

from hyperruntime.driver import Driver, Launch
from hyperruntime.errors import (
    HyperRuntimeError,
    ImageError,
    SpecError,
    UnsupportedOptionError,
)
from hyperruntime.gpu.devices import cannot_give
from hyperruntime.host.inherited import process_ceiling
from hyperruntime.host.process import last_line
from hyperruntime.layers.images import ImageSource
from hyperruntime.layers.namespace import Job, Layers
from hyperruntime.layers.sandboxes import Means, SandboxContainer, SandboxDriver
from hyperruntime.layers.snapshots.freezing import Users
from hyperruntime_apptainer.args import NAME, Places, Settings, make_job, refuse
from hyperruntime_apptainer.diagnosis import findings
from hyperruntime_apptainer.files import make_files
from hyperruntime_apptainer.gpus import find_gpus
from hyperruntime_apptainer.images import ApptainerImages
from hyperruntime_apptainer.probe import Probe, cached_probe
from hyperruntime_apptainer.texts import LIMIT_MARK, WORKDIR_MARK


class ApptainerContainer(SandboxContainer):
    """A container whose main process is the shell attached to ``apptainer exec``."""

    def __init__(
        self, launch: Launch, settings: Settings, image: ImageSource, means: Means
    ) -> None:
        """Start the container; see :class:`~hyperruntime.layers.sandboxes.SandboxContainer`.

        Args:
            launch: the container to start.
            settings: the results of the probe.
            image: the image's files and its own working directory.
            means: what it is started with.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            DeviceError: a requested GPU is unknown, or a file that it needs does not exist.
        """
        self._gpus = find_gpus(launch.spec.gpus, cdi=settings.cdi)
        self._settings = settings
        self._image = image
        self.exec_env = self._gpus.env
        super().__init__(launch, image, means)

    def _places(self) -> Places:
        return Places(
            image=self._image.files,
            files=self._files,
            workdir=self._image.workdir,
            own_root=self._settings.overlay and os.path.isdir(self._image.files),
            copied=self._settings.setuid and not self._launch.spec.read_only_rootfs,
        )

    def _make_files(self) -> Layers | None:
        places = self._places()
        make_files(places, self._launch.spec, self._gpus)
        if self._settings.setuid:
            self.layer = places.tmp  # the changes of a container whose root is read-only
        if places.copied:
            self._copy()
        return self._make_layers() if places.own_root else None

    def _job(self) -> Job:
        return make_job(self._launch, self._settings, self._places(), self._gpus, self._layers)

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered.

        Args:
            error_text: what Apptainer and the shell wrote to standard error.
            user: unused; there are no shells for other users.
        """
        spec = self._launch.spec
        if WORKDIR_MARK in error_text:
            return SpecError(
                "workdir", spec.workdir, "a directory that exists in the image or in a mount"
            )
        if LIMIT_MARK in error_text:
            why = (
                f"the /bin/sh of image {spec.image!r} cannot limit processes (`ulimit -u`); set "
                "the limit to None"
            )
            return UnsupportedOptionError(NAME, "limits.pids", why)
        text = last_line(error_text)
        if spec.gpus is not None and re.search(r"/dev/|mount", text) and "no space" not in text:
            return cannot_give(spec.gpus, text)
        return super().explain_start_failure(error_text, user)


class ApptainerDriver(SandboxDriver[Probe, ApptainerImages]):
    """Driver for Apptainer 1.3 and newer, and SingularityCE 4."""

    name = NAME

    def __init__(self) -> None:
        """Create a driver; the probe runs when it is first needed."""
        super().__init__(cached_probe, findings, ApptainerImages())

    def _users(self) -> Users:
        settings = self._probe.get().settings
        return None if settings.setuid else settings.users

    def launch(self, launch: Launch) -> ApptainerContainer:
        """Start a container with its shell attached.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            SpecError: the spec does not fit in a command line.
            ImageNotFoundError: the image is not on this machine.
            ImageError: there is no space to unpack the image.
            EngineUnavailableError: Apptainer cannot run.
        """
        # Today's process limit may be lower than at the probe.
        settings = attrs.evolve(self._probe.get().settings, nproc=process_ceiling())
        refuse(launch.spec, settings)
        tree = launch.layers[-1] if launch.layers else ""
        image = self.images.source(launch.spec.image, tree, mounts=settings.overlay)
        if settings.setuid and not os.path.isdir(image.files):
            raise ImageError(f"there is no space to unpack {image.files}; free space there")
        return ApptainerContainer(launch, settings, image, self._means(users=self._users()))


_: type[Driver] = ApptainerDriver
