"""The Apptainer driver: runs as an ordinary user, without a daemon, a setuid program or an
instance.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from contextlib import ExitStack

import attrs

from hyperruntime.driver import ContainerRecord, Driver, Launch
from hyperruntime.errors import HyperRuntimeError, SpecError, UnsupportedOptionError, write_error
from hyperruntime.gpu.devices import cannot_give
from hyperruntime.host.engine_driver import EngineDriver, ShellContainer
from hyperruntime.host.engine_program import program_needed, start_refusal, unknown_failure
from hyperruntime.host.inherited import file_limit_args, process_ceiling
from hyperruntime.host.process import PIPE, STDOUT, ProcessShell, last_line, spawn
from hyperruntime_apptainer import records
from hyperruntime_apptainer.args import NAME, Gpus, Places, Settings, environment, refuse, run_args
from hyperruntime_apptainer.diagnosis import findings
from hyperruntime_apptainer.gpus import find_gpus
from hyperruntime_apptainer.images import ApptainerImages
from hyperruntime_apptainer.probe import Probe, cached_probe
from hyperruntime_apptainer.scratch import make_files, scratch_directory
from hyperruntime_apptainer.texts import LIMIT_MARK, WORKDIR_MARK


class ApptainerContainer(ShellContainer):
    """A container whose main process is the shell attached to ``apptainer exec``.

    Attributes:
        layer: the host directory that takes its changes to the image's files.
    """

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        image: str,
        workdir: str,
        on_unknown_failure: Callable[[], None],
    ) -> None:
        """Start the container without waiting for its shell to answer.

        Args:
            launch: the container to start.
            settings: the results of the probe.
            image: path of the image's files.
            workdir: the image's own working directory.
            on_unknown_failure: called if the container does not start and the settings may be the
                reason.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            DeviceError: a requested GPU is unknown, or a file that it needs does not exist.
            StorageError: the container's files or its record cannot be written.
            EngineUnavailableError: a process cannot be started.
        """
        gpus = find_gpus(launch.spec.gpus)
        self.id = launch.name
        self.exec_env = gpus.env
        self._launch = launch
        self._on_unknown_failure = on_unknown_failure
        places = _make_places(launch, image, workdir, gpus)
        # beside it is overlayfs's own directory, which nobody can read
        self.layer = f"{places.layer}/upper"
        with ExitStack() as undo:
            undo.callback(records.discard, places.files, places.record)
            with program_needed(NAME, "/bin/sh", "reinstall it"):
                args = file_limit_args(run_args(launch, settings, places, gpus))
                process = spawn(
                    args, stdin=PIPE, stderr=STDOUT, cwd="/", env=environment(os.environ)
                )
            self.shell = ProcessShell(process)
            undo.callback(self.shell.close_output)
            undo.callback(self.shell.close)
            self._record = records.write(
                self.id, launch.spec.image, image, launch.labels, process.pid, places.files
            )
            undo.pop_all()

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered.

        Args:
            error_text: what Apptainer and the shell wrote to standard error.
            user: unused; there are no shells for other users.
        """
        spec = self._launch.spec
        text = last_line(error_text, r"(FATAL|ERROR|WARNING):\s+")
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
        full = f"{scratch_directory()} is full: {text}; free space there, or set APPTAINER_TMPDIR"
        if (refusal := start_refusal(error_text, spec, user, full)) is not None:
            return refusal
        if spec.gpus is not None and re.search(r"/dev/|mount", text):
            return cannot_give(spec.gpus, text)
        self._on_unknown_failure()
        return unknown_failure(NAME, text, self.shell)

    def remove(self) -> None:
        """End and remove the container at once."""
        self.shell.close()
        records.end(self._record)


def _make_places(launch: Launch, image: str, workdir: str, gpus: Gpus) -> Places:
    scratch = scratch_directory()
    files = f"{scratch}/{launch.name}-{secrets.token_hex(4)}"
    places = Places(image=image, files=files, record=records.path_of(launch.name), workdir=workdir)
    # The record comes first: until the keeper runs, only the record leads to the files of a killed
    # owner.
    records.write(launch.name, launch.spec.image, image, launch.labels, os.getpid(), files)
    try:
        make_files(places, launch.spec)
        for name, path in gpus.libraries.items():
            os.symlink(path, f"{places.libraries}/{name}")
    except OSError as error:
        records.discard(files, places.record)
        raise write_error(
            f"{scratch} cannot be written: {error}; free space, or set APPTAINER_TMPDIR", error
        ) from error
    return places


class ApptainerDriver(EngineDriver[Probe]):
    """Driver for Apptainer 1.3 and 1.4."""

    name = NAME

    def __init__(self) -> None:
        """Create a driver; the probe runs when it is first needed."""
        super().__init__(cached_probe, findings)

    @property
    def images(self) -> ApptainerImages:
        """This user's images."""
        return ApptainerImages()

    def launch(self, launch: Launch) -> ApptainerContainer:
        """Start a container with its shell attached.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            SpecError: the spec does not fit in a command line.
            ImageNotFoundError: the image is not on this machine.
            EngineUnavailableError: Apptainer cannot run.
        """
        # Today's process limit may be lower than at the probe.
        settings = attrs.evolve(self._probe.get().settings, nproc=process_ceiling())
        refuse(launch.spec, settings)
        image, workdir = self.images.source(launch.spec.image)
        return ApptainerContainer(launch, settings, image, workdir, self._probe.distrust)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this user's containers, from their records."""
        return tuple(
            ContainerRecord(
                id=one.name,
                image=one.image,
                state=one.state(),
                created=one.created,
                labels=one.labels,
            )
            for one in records.read_all()
        )

    def remove_container(self, container_id: str) -> None:
        """End and remove a container; do nothing if it does not exist.

        Raises:
            EngineError: it runs on another machine, or does not end.
        """
        records.remove(container_id)


_: type[Driver] = ApptainerDriver
