"""One running Apptainer container: its attached shell, its end, and why it ended."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from hyperruntime.driver import Launch, PostMortem
from hyperruntime.errors import (
    DeviceError,
    EngineError,
    EngineUnavailableError,
    HyperRuntimeError,
    SpecError,
    StorageError,
    UnsupportedOptionError,
)
from hyperruntime.host.process import PIPE, HostProcess, ProcessShell, spawn
from hyperruntime_apptainer import records
from hyperruntime_apptainer.args import (
    NAME,
    Gpus,
    Places,
    Settings,
    config_text,
    environment,
    only_root_user,
    refuse,
    run_args,
)
from hyperruntime_apptainer.gpus import find_gpus
from hyperruntime_apptainer.images import Source
from hyperruntime_apptainer.scratch import scratch_directory
from hyperruntime_apptainer.texts import LIMIT_MARK, WORKDIR_MARK


class ApptainerContainer:
    """A container whose main process is the shell attached to ``apptainer exec``.

    Attributes:
        id: its name.
        shell: its main process's shell.
        exec_env: what every exec needs beyond the spec's environment.
        layer: the host's directory that takes what it writes.
    """

    def __init__(
        self, launch: Launch, settings: Settings, source: Source, on_unknown_failure: Callable[[], None]
    ) -> None:
        """Start it; the shell answers a little later.

        Args:
            launch: what to start.
            settings: how Apptainer must be called here.
            source: what it is made from.
            on_unknown_failure: called when it does not start for a reason that may lie in the settings.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            DeviceError: a GPU that was asked for is not known, or what it needs is not here.
            StorageError: its files or its record cannot be written.
        """
        refuse(launch.spec, settings)
        gpus = find_gpus(launch.spec.gpus)
        self.id = launch.name
        self.exec_env: Mapping[str, str] = gpus.env
        self._launch, self._on_unknown_failure = launch, on_unknown_failure
        places = _make_places(launch, source, gpus)
        self.layer = places.layer
        try:
            process = _start(run_args(launch, settings, places, gpus))
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
        """Refuse: there is no other user."""
        raise UnsupportedOptionError(NAME, "user", only_root_user())

    def observe(self) -> None:
        """Note nothing: there are no counters of the kernel to look at."""

    def post_mortem(self) -> PostMortem:
        """Return what is known of its end."""
        code = self.shell.wait(0.3)
        return PostMortem(state="running" if code is None else "exited", exit_code=code)

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered; there is no shell for another user."""
        spec, text = self._launch.spec, _last_line(error_text)
        if WORKDIR_MARK in error_text:
            return SpecError("workdir", spec.workdir, "a directory that exists in the image or in a mount")
        if LIMIT_MARK in error_text:
            why = f"the /bin/sh of image {spec.image!r} cannot limit processes (`ulimit -u`); set it to None"
            return UnsupportedOptionError(NAME, "limits.pids", why)
        if re.search(r"/bin/sh.*(not found|no such file)|no such file.*/bin/sh", error_text, re.IGNORECASE):
            return EngineError(f"image {spec.image!r} has no /bin/sh, which execs need; use an image that has one")
        if "no space left" in error_text.lower():
            return EngineError(f"{scratch_directory()} is full: {text}; free space there, or set APPTAINER_TMPDIR")
        if spec.gpus is not None and re.search(r"/dev/|mount", text):
            return DeviceError(
                f"gpus={spec.gpus!r} cannot be given to a container: {text}; is its CDI spec out of date?"
            )
        if not text:
            code = self.shell.wait(1.0)
            text = "the shell in it never answered" if code is None else f"apptainer ended with exit code {code}"
        self._on_unknown_failure()
        return EngineUnavailableError(NAME, text, "try again, which tries this machine anew, or see `hyperrun doctor`")

    def remove(self) -> None:
        """End and remove it at once."""
        self.shell.close()
        records.end(self._record)


def _make_places(launch: Launch, source: Source, gpus: Gpus) -> Places:
    scratch = scratch_directory()
    files = f"{scratch}/{launch.name}-{secrets.token_hex(4)}"
    places = Places(image=source.path, files=files, record=records.path_of(launch.name), workdir=source.workdir)
    # Before there is anything: until the keeper runs, only this leads to what a killed owner left.
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


def _start(args: list[str]) -> HostProcess:
    try:
        return spawn(args, stdin=PIPE, cwd="/", env=environment(os.environ))
    except OSError as error:
        if error.errno == errno.E2BIG:
            allowed = "less text: labels and mounts together are more than a command line holds"
            raise SpecError("labels", "...", allowed) from error
        raise EngineUnavailableError(NAME, f"no process can be made: {error}", "see `hyperrun doctor`") from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"^(FATAL|ERROR|WARNING):\s+", "", lines[-1]) if lines else ""
