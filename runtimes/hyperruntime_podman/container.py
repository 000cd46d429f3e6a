"""One running Podman container: its attached shells, its end, and why it ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hyperruntime.driver import Launch, PostMortem
from hyperruntime.errors import (
    DeviceError,
    EngineError,
    EngineUnavailableError,
    HyperRuntimeError,
    ImageNotFoundError,
    SpecError,
)
from hyperruntime.gpu.cdi import Device
from hyperruntime.gpu.devices import GENERATE, load_devices, merge_edits
from hyperruntime.gpu.grant import gpu_devices
from hyperruntime.host.cgroups import kernel_killed_in, memory_cgroups
from hyperruntime.host.process import ProcessShell
from hyperruntime_podman.args import NAME, Settings, exec_args, pidfile, run_args
from hyperruntime_podman.edge import attach_podman, run_podman
from hyperruntime_podman.gpus import device_args

_REMOVE_TIMEOUT_S = 30.0
_REMOVE_AGAIN_S = 10.0
_PASSES = re.compile(r"did not die|could not be stopped|state improper|removing", re.IGNORECASE)


class PodmanContainer:
    """A container whose main process is the shell attached to ``podman run``.

    Attributes:
        id: its name.
        shell: its main process's shell.
        exec_env: what every exec needs beyond the spec's environment.
    """

    def __init__(self, launch: Launch, settings: Settings, on_unknown_failure: Callable[[], None]) -> None:
        """Start it; the shell answers a little later.

        Args:
            launch: what to start.
            settings: how Podman must be called here.
            on_unknown_failure: called when it does not start for a reason that may lie in the settings.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            DeviceNotFoundError: no CDI spec describes a GPU that was asked for.
            EngineUnavailableError: Podman cannot be started.
        """
        self.id = launch.name
        devices = _devices(launch)
        # Podman gives it to the main process only, and to none where the edits are arguments.
        self.exec_env: Mapping[str, str] = merge_edits(devices).env
        self._launch, self._settings, self._on_unknown_failure = launch, settings, on_unknown_failure
        self._cgroups: tuple[Path, ...] | None = None
        self._oom_killed = False
        args = run_args(launch, settings, device_args(devices, rootless=settings.rootless))
        self.shell = ProcessShell(attach_podman(args))

    def open_shell(self, user: str) -> ProcessShell:
        """Attach another shell as another user."""
        return ProcessShell(attach_podman(exec_args(self.id, user, self._settings)))

    def observe(self) -> None:
        """Note the container's cgroups, then whether the kernel has killed in them: they vanish with it."""
        if self._cgroups is None:
            self._cgroups = self._find_cgroups()
        self._oom_killed = self._oom_killed or any(kernel_killed_in(directory) for directory in self._cgroups)

    def post_mortem(self) -> PostMortem:
        """Return what is known of its end."""
        self.observe()
        code = self.shell.wait(0.3)
        state = "running" if code is None else "exited"
        return PostMortem(state=state, exit_code=code, oom_killed=self._oom_killed)

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered; ``user`` is whose it was, if not the spec's."""
        spec, text = self._launch.spec, _last_line(error_text)
        if re.search(r"image not known|no such image|unable to find a name|short-name", error_text):
            step = f"get it with `hyperrun image pull {spec.image}`, or `hyperrun image build` or `image bootstrap`"
            return ImageNotFoundError(spec.image, step)
        if re.search(r"unable to find (user|group)|no matching entries in (passwd|group)", error_text):
            return SpecError("user", user or spec.user, "a user and a group that the image knows, or numbers")
        if re.search(r"workdir.*(does not exist|not exist)", error_text):
            return SpecError("workdir", spec.workdir, "a directory that exists in the image or in a mount")
        if "failed to spawn pid1" in error_text or "resource temporarily unavailable" in error_text.lower():
            return EngineUnavailableError(NAME, self._no_process(text), "end other containers, or raise limits.pids")
        if re.search(r"/bin/sh.*(not found|no such file)|no such file.*/bin/sh|failed to exec pid1", error_text, re.I):
            return EngineError(f"image {spec.image!r} has no /bin/sh, which execs need; use an image that has one")
        if "CDI" in error_text:
            step = f"`podman --version` may be too old for the spec's cdiVersion; {GENERATE}"
            return DeviceError(f"Podman cannot give gpus={spec.gpus!r} to a container: {text}; {step}")
        if spec.gpus is not None and re.search(r"/dev/|error mounting|hook", error_text):
            return DeviceError(
                f"gpus={spec.gpus!r} cannot be given to a container: {text}; is its CDI spec out of date?"
            )
        if "no space left" in error_text.lower():
            return EngineError(f"Podman's storage is full: {text}; free space with `podman system prune`")
        if not text:
            code = self.shell.wait(1.0)
            text = "the shell in it never answered" if code is None else f"podman ended with exit code {code}"
        self._on_unknown_failure()
        return EngineUnavailableError(NAME, text, "try again, which tries this machine anew, or see `hyperrun doctor`")

    def _no_process(self, text: str) -> str:
        if self._settings.limits.get("pids") == "rlimit" and not self._settings.uids:
            asked = self._launch.spec.limits.pids
            return f"all containers of this user together have limits.pids={asked} processes or more: {text}"
        return f"this user has as many processes as it may (`ulimit -u`): {text}"

    def remove(self) -> None:
        """End and remove it at once."""
        remove(self.id)

    def _find_cgroups(self) -> tuple[Path, ...]:
        try:
            return memory_cgroups(int(Path(pidfile(self._launch)).read_text()))
        except (OSError, ValueError):
            return ()


def _devices(launch: Launch) -> tuple[Device, ...]:
    gpus = launch.spec.gpus
    return () if gpus is None else gpu_devices(gpus, load_devices())


def remove(name: str) -> None:
    """End and remove a container by name or id; no error when it is gone already.

    Podman gives up by itself where the processes of a container take longer than it likes to end, as on a busy machine.

    Raises:
        EngineError: it cannot be removed, or its processes did not end for a long time.
    """
    args = ["podman", "rm", "--force", "--volumes", "--time", "0", name]
    deadline = time.monotonic() + _REMOVE_AGAIN_S
    try:
        while True:
            result = run_podman(args, timeout_s=_REMOVE_TIMEOUT_S)
            if result.exit_code == 0 or b"no such container" in result.stderr.lower():
                return
            if not _PASSES.search(result.error_text) or time.monotonic() > deadline:
                raise EngineError(f"container {name} could not be removed: {result.error_text}")
            time.sleep(0.5)
    except TimeoutError as error:
        raise EngineError(f"container {name} could not be removed: {error}; try `podman rm --force {name}`") from None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ") if lines else ""
