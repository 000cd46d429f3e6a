"""One running Apptainer container: its attached shell, its removal, and the reasons for failures."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from hyperruntime.driver import Launch, PostMortem
from hyperruntime.errors import (
    DeviceError,
    HyperRuntimeError,
    SpecError,
    StorageError,
    UnsupportedOptionError,
)
from hyperruntime.host.engine_program import program_needed, start_refusal, unknown_failure
from hyperruntime.host.process import PIPE, ProcessShell, last_line, spawn
from hyperruntime_apptainer import records
from hyperruntime_apptainer.args import (
    NAME,
    Gpus,
    Places,
    Settings,
    config_text,
    environment,
    only_root_user,
    run_args,
)
from hyperruntime_apptainer.gpus import find_gpus
from hyperruntime_apptainer.images import Source
from hyperruntime_apptainer.scratch import scratch_directory
from hyperruntime_apptainer.texts import LIMIT_MARK, WORKDIR_MARK


class ApptainerContainer:
    """A container whose main process is the shell attached to ``apptainer exec``.

    Attributes:
        id: the container's name.
        shell: the shell that is its main process.
        exec_env: environment that every exec needs beyond the spec's.
        layer: the host directory that takes its changes to the image's files.
    """

    def __init__(
        self, launch: Launch, settings: Settings, source: Source, on_unknown_failure: Callable[[], None]
    ) -> None:
        """Start the container without waiting for its shell to answer.

        Args:
            launch: the container to start.
            settings: the results of the probe.
            source: the image's files.
            on_unknown_failure: called if the container does not start and the settings may be the reason.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            DeviceError: a requested GPU is unknown, or a file that it needs does not exist.
            StorageError: the container's files or its record cannot be written.
            EngineUnavailableError: a process cannot be started.
        """
        gpus = find_gpus(launch.spec.gpus)
        self.id = launch.name
        self.exec_env: Mapping[str, str] = gpus.env
        self._launch, self._on_unknown_failure = launch, on_unknown_failure
        places = _make_places(launch, source, gpus)
        self.layer = places.layer
        try:
            with program_needed(NAME, "/bin/sh", "reinstall it"):
                process = spawn(
                    run_args(launch, settings, places, gpus), stdin=PIPE, cwd="/", env=environment(os.environ)
                )
            self.shell = ProcessShell(process)
            try:
                self._record = records.write(
                    self.id, launch.spec.image, source.path, launch.labels, process.pid, places.files
                )
            except BaseException:
                self.shell.close()
                self.shell.close_output()
                raise
        except BaseException:
            records.discard(places.files, places.record)
            raise

    def open_shell(self, user: str) -> ProcessShell:
        """Raise: a container has only one user.

        Raises:
            UnsupportedOptionError: always.
        """
        raise UnsupportedOptionError(NAME, "user", only_root_user())

    def observe(self) -> None:
        """Do nothing: there are no kernel counters to read."""

    def post_mortem(self) -> PostMortem:
        """Return what is known about the container's end."""
        code = self.shell.wait(0.3)
        return PostMortem(state="running" if code is None else "exited", exit_code=code)

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered.

        Args:
            error_text: what Apptainer and the shell wrote to standard error.
            user: unused; there are no shells for other users.
        """
        spec, text = self._launch.spec, last_line(error_text, r"(FATAL|ERROR|WARNING):\s+")
        if WORKDIR_MARK in error_text:
            return SpecError("workdir", spec.workdir, "a directory that exists in the image or in a mount")
        if LIMIT_MARK in error_text:
            why = f"the /bin/sh of image {spec.image!r} cannot limit processes (`ulimit -u`); set the limit to None"
            return UnsupportedOptionError(NAME, "limits.pids", why)
        full = f"{scratch_directory()} is full: {text}; free space there, or set APPTAINER_TMPDIR"
        if (refusal := start_refusal(error_text, spec, user, full)) is not None:
            return refusal
        if spec.gpus is not None and re.search(r"/dev/|mount", text):
            return DeviceError(
                f"gpus={spec.gpus!r} cannot be given to a container: {text}; is its CDI spec out of date?"
            )
        self._on_unknown_failure()
        return unknown_failure(NAME, text, self.shell)

    def remove(self) -> None:
        """End and remove the container at once."""
        self.shell.close()
        records.end(self._record)


def _make_places(launch: Launch, source: Source, gpus: Gpus) -> Places:
    scratch = scratch_directory()
    files = f"{scratch}/{launch.name}-{secrets.token_hex(4)}"
    places = Places(image=source.path, files=files, record=records.path_of(launch.name), workdir=source.workdir)
    # The record comes first: until the keeper runs, only the record leads to the files of a killed owner.
    records.write(launch.name, launch.spec.image, source.path, launch.labels, os.getpid(), files)
    try:
        os.mkdir(files, 0o700)
        for directory in (places.layer, places.sys, places.tmp, places.devices, places.libraries):
            os.mkdir(directory)
        for name, path in gpus.libraries.items():
            os.symlink(path, f"{places.libraries}/{name}")
        Path(places.config).write_text(config_text(launch.spec))
    except OSError as error:
        records.discard(files, places.record)
        raise StorageError(f"{scratch} cannot be written: {error}; free space, or set APPTAINER_TMPDIR") from error
    return places
