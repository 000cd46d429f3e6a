"""One running Podman container: its attached shells, its removal, and the reasons for failures."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hyperruntime.driver import Launch, PostMortem
from hyperruntime.errors import (
    DeviceError,
    EngineError,
    EngineUnavailableError,
    HyperRuntimeError,
    ImageNotFoundError,
    ProcessLimitError,
)
from hyperruntime.gpu.devices import GENERATE, load_devices, merge_edits
from hyperruntime.gpu.grant import gpu_devices
from hyperruntime.host.engine_program import start_refusal, unknown_failure
from hyperruntime.host.process import ProcessShell, last_line
from hyperruntime.host.process_tree import kernel_killed_in, memory_cgroups
from hyperruntime_podman.args import NAME, Settings, exec_args, own_args, pidfile, run_args
from hyperruntime_podman.edge import attach_podman, run_podman
from hyperruntime_podman.gpus import device_args

_REMOVE_AGAIN_S = 10.0
_NOT_THERE = 1  # source: podman-container-exists(1)
_NO_PROCESS = re.compile(
    r"cannot fork|resource temporarily unavailable|can't get final child's PID", re.I
)
_PASSES = re.compile(r"did not die|could not be stopped|state improper|removing", re.IGNORECASE)


class PodmanContainer:
    """A container whose main process is the shell attached to ``podman run``.

    Attributes:
        id: the container's name.
        shell: the shell that is its main process.
        exec_env: environment that every exec needs beyond the spec's.
    """

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        on_unknown_failure: Callable[[], None],
        image: str = "",
    ) -> None:
        """Start the container without waiting for its shell to answer.

        Args:
            launch: the container to start.
            settings: the results of the probe.
            on_unknown_failure: called if the container does not start and the settings may be the
                reason.
            image: the image in the store of the settings; "" means the spec's.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            DeviceNotFoundError: no CDI spec describes a requested GPU.
            SpecError: the spec does not fit in a command line.
            EngineUnavailableError: Podman cannot be started.
        """
        self.id = launch.name
        gpus = launch.spec.gpus
        devices = () if gpus is None else gpu_devices(gpus, load_devices())
        # Podman gives this environment to the main process only, and to no process if the edits are
        # arguments.
        self.exec_env: Mapping[str, str] = merge_edits(devices).env
        self._launch = launch
        self._settings = settings
        self._on_unknown_failure = on_unknown_failure
        self._cgroups: tuple[Path, ...] | None = None
        self._oom_killed = False
        args = run_args(launch, settings, device_args(devices, rootless=settings.rootless), image)
        self.shell = ProcessShell(attach_podman(args))

    def open_shell(self, user: str) -> ProcessShell:
        """Attach another shell as another user.

        Raises:
            EngineUnavailableError: Podman cannot be started.
        """
        return ProcessShell(attach_podman(exec_args(self._launch, user, self._settings)))

    def observe(self) -> None:
        """Record whether the kernel killed a process in the container's cgroups, which vanish with
        the container.
        """
        if self._cgroups is None:
            try:
                pid = int(Path(pidfile(self._launch)).read_text())
            except (OSError, ValueError):
                pid = 0
            self._cgroups = memory_cgroups(pid)
        self._oom_killed = self._oom_killed or any(
            kernel_killed_in(directory) for directory in self._cgroups
        )

    def post_mortem(self) -> PostMortem:
        """Return what is known about the container's end."""
        self.observe()
        code = self.shell.wait(0.3)
        state = "running" if code is None else "exited"
        return PostMortem(state=state, exit_code=code, oom_killed=self._oom_killed)

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered.

        Args:
            error_text: what Podman and the shell wrote to standard error.
            user: the user of the shell; None means the spec's user.
        """
        spec = self._launch.spec
        text = last_line(error_text, "Error: ")
        if re.search(r"image not known|no such image|unable to find a name|short-name", error_text):
            step = (
                f"get it with `hyperrun image pull {spec.image}`, or `hyperrun image build` or "
                "`image bootstrap`"
            )
            return ImageNotFoundError(spec.image, step)
        if _NO_PROCESS.search(error_text):
            return ProcessLimitError(
                NAME, self._no_process(text), "end other containers, or raise limits.pids"
            )
        if "session key" in error_text and "quota exceeded" in error_text:
            step = "end other containers, or ask root for `sysctl kernel.keys.maxkeys=2000`"
            why = (
                "each container takes a kernel key, and this user has none left "
                "(`kernel.keys.maxkeys`)"
            )
            return EngineUnavailableError(NAME, why, step)
        full = f"Podman's storage is full: {text}; `podman system df` shows of what"
        if (refusal := start_refusal(error_text, spec, user, full)) is not None:
            return refusal
        if "CDI" in error_text:
            step = f"`podman --version` may be too old for the spec's cdiVersion; {GENERATE}"
            return DeviceError(
                f"Podman cannot give gpus={spec.gpus!r} to a container: {text}; {step}"
            )
        if spec.gpus is not None and re.search(r"/dev/|error mounting|hook", error_text):
            return DeviceError(
                f"gpus={spec.gpus!r} cannot be given to a container: {text}; is its CDI spec "
                "out of date?"
            )
        self._on_unknown_failure()
        return unknown_failure(NAME, text, self.shell)

    def _no_process(self, text: str) -> str:
        if self._settings.limits.get("pids") == "rlimit" and not self._settings.uids:
            asked = self._launch.spec.limits.pids
            return (
                f"all containers of this user together have limits.pids={asked} processes or "
                f"more: {text}"
            )
        return f"this user has reached the limit on processes (`ulimit -u`): {text}"

    def remove(self) -> None:
        """End and remove the container at once."""
        remove(self.id, own_args(self._settings))


def remove(name: str, store_args: Sequence[str] = ()) -> None:
    """End and remove a container by name or id; do nothing if it does not exist.

    This retries: on a busy machine Podman gives up before the container's processes have ended, and
    a batch system that ends a job may send SIGTERM to ``podman rm`` too. Then Podman 4 exits with 0
    and prints no name.

    Args:
        name: the container.
        store_args: the global options that name its store; none means the user's.

    Raises:
        EngineError: the container cannot be removed, or its processes do not end.
    """
    podman = ["podman", *store_args]
    args = [*podman, "rm", "--force", "--volumes", "--time", "0", name]
    deadline = time.monotonic() + _REMOVE_AGAIN_S
    while True:
        result = run_podman(args, "remove")
        if (
            result.exit_code == 0 and result.stdout
        ) or b"no such container" in result.stderr.lower():
            return
        if (
            result.exit_code == 0
            and run_podman([*podman, "container", "exists", name]).exit_code == _NOT_THERE
        ):
            return
        passes = result.exit_code <= 0 or _PASSES.search(result.error_text)
        if not passes or time.monotonic() > deadline:
            raise EngineError(f"container {name} could not be removed: {result.error_text}")
        time.sleep(0.5)
