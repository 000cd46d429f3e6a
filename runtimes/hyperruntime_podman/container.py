"""One running Podman container: its attached shells, its devices, its removal, and the reasons for
failures.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hyperruntime.driver import Launch
from hyperruntime.errors import (
    DeviceError,
    EngineError,
    EngineUnavailableError,
    HyperRuntimeError,
    ImageError,
    ImageNotFoundError,
    ProcessLimitError,
    UnsupportedOptionError,
)
from hyperruntime.gpu.cdi import Device, Edits
from hyperruntime.gpu.devices import (
    DEFAULT_DIRECTORIES,
    GENERATE,
    cannot_give,
    load_devices,
    merge_edits,
)
from hyperruntime.gpu.grant import gpu_devices
from hyperruntime.host.engine_driver import ShellContainer
from hyperruntime.host.engine_program import (
    NO_IDS,
    mount_option,
    start_refusal,
    unknown_failure,
)
from hyperruntime.host.process import ProcessShell, last_line
from hyperruntime.layers.snapshots.kept_images import Labels, facts
from hyperruntime_podman.args import NAME, Settings, exec_args, own_args, pidfile, run_args
from hyperruntime_podman.edge import attach_podman, run_podman
from hyperruntime_podman.program import program

_REMOVE_AGAIN_S = 10.0
_NOT_THERE = 1  # source: podman-container-exists(1)
_NO_PROCESS = re.compile(
    r"cannot fork|resource temporarily unavailable|can't get final child's PID", re.I
)
_NO_ID = re.compile(r"unmapped [ug]id|doesn't map [UG]ID")
_PASSES = re.compile(r"did not die|could not be stopped|state improper|removing", re.IGNORECASE)


class PodmanContainer(ShellContainer):
    """A container whose main process is the shell attached to ``podman run``."""

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        on_unknown_failure: Callable[[], None],
        image: str,
        keep: Callable[[Settings, str, str, Labels], tuple[str, ...]],
    ) -> None:
        """Start the container without waiting for its shell to answer.

        Args:
            launch: the container to start.
            settings: the results of the probe.
            on_unknown_failure: called if the container does not start and the settings may be the
                reason.
            image: the image in the store of the settings; "" means the spec's.
            keep: keeps its files: called with the settings, its name, its image, and what returns
                the labels.

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
        self.exec_env = merge_edits(devices).env
        self._launch = launch
        self._settings = settings
        self._on_unknown_failure = on_unknown_failure
        self._image = image or launch.spec.image
        self._keep = keep
        args = run_args(launch, settings, device_args(devices, rootless=settings.rootless), image)
        self.shell = ProcessShell(attach_podman(args))

    def host_pid(self) -> int:
        """Return the pid of the container's first process, which Podman wrote to a file; else 0."""
        try:
            return int(Path(pidfile(self._launch)).read_text())
        except (OSError, ValueError):
            return 0

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
        if "invalid image env variable" in error_text:
            why = f"image {spec.image!r} asks for a variable of this machine, which is refused"
            return ImageError(f"{why}: {text}; make it again with `ENV NAME=VALUE`")
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
        if not self._settings.has_users and _NO_ID.search(error_text):
            return UnsupportedOptionError(NAME, "user", NO_IDS)
        full = f"Podman's storage is full: {text}; `{program()} system df` shows of what"
        if (refusal := start_refusal(error_text, spec, user, full)) is not None:
            return refusal
        if "CDI" in error_text:
            step = f"`{program()} --version` may be too old for the spec's cdiVersion; {GENERATE}"
            return DeviceError(
                f"Podman cannot give gpus={spec.gpus!r} to a container: {text}; {step}"
            )
        if spec.gpus is not None and re.search(r"/dev/|error mounting|hook", error_text):
            return cannot_give(spec.gpus, text)
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

    def freeze(self, *, running: bool, repositories: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Copy its files to an image; see :class:`~hyperruntime.driver.Freezes`."""
        labels = partial(facts, self._launch.spec.image, repositories)
        return self._keep(self._settings, self.id, self._image, labels)

    def remove(self) -> None:
        """End and remove the container at once."""
        remove(self.id, own_args(self._settings))


class OpenPodmanContainer(PodmanContainer):
    """A container to which Podman attaches shells of other users."""

    def open_shell(self, user: str) -> ProcessShell:
        """Attach another shell as another user.

        Raises:
            EngineUnavailableError: Podman cannot be started.
        """
        return ProcessShell(attach_podman(exec_args(self._launch, user, self._settings)))


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
    args = [*store_args, "rm", "--force", "--volumes", "--time", "0"]
    deadline = time.monotonic() + _REMOVE_AGAIN_S
    while True:
        result = run_podman([*args, name], "remove")
        if "dependent containers" in result.error_text and "--depend" not in args:
            args.append("--depend")  # its services
            continue
        if (
            result.exit_code == 0 and result.stdout
        ) or b"no such container" in result.stderr.lower():
            return
        if (
            result.exit_code == 0
            and run_podman([*store_args, "container", "exists", name]).exit_code == _NOT_THERE
        ):
            return
        passes = result.exit_code <= 0 or _PASSES.search(result.error_text)
        if not passes or time.monotonic() > deadline:
            raise EngineError(f"container {name} could not be removed: {result.error_text}")
        time.sleep(0.5)


def device_args(devices: Sequence[Device], *, rootless: bool) -> list[str]:
    """Return the options that give devices to a container; the caller adds their environment to
    every exec.

    Args:
        devices: the CDI devices.
        rootless: whether Podman runs as an ordinary user.

    Raises:
        UnsupportedOptionError: Podman cannot resolve the names, but the spec has hooks, which only
            Podman can run.
    """
    if not devices:
        return []
    edits = merge_edits(devices)
    reason = _why_not_by_name(devices, edits, rootless=rootless)
    if reason is None:
        return [word for device in devices for word in ("--device", device.name)]
    if edits.hooks:
        hooks = ", ".join(dict.fromkeys(" ".join(hook.args) or hook.path for hook in edits.hooks))
        raise UnsupportedOptionError(
            NAME,
            "gpus",
            f"{reason}, and only Podman itself can run the hooks of the devices: {hooks}",
        )
    return edit_args(edits)


def edit_args(edits: Edits) -> list[str]:
    """Return a CDI spec's edits as options of ``podman run``."""
    args: list[str] = []
    for node in edits.device_nodes:
        args += ["--device", f"{node.host_path}:{node.path}:{node.permissions}"]
    for mount in edits.mounts:
        args += ["--mount", mount_option(NAME, mount)]
    for group in edits.groups:
        args += ["--group-add", str(group)]
    return args


def _why_not_by_name(devices: Sequence[Device], edits: Edits, *, rootless: bool) -> str | None:
    """Return why Podman itself cannot resolve the names, or None if it can."""
    for device in devices:
        if device.file.parent not in map(Path, DEFAULT_DIRECTORIES):
            places = " and ".join(DEFAULT_DIRECTORIES)
            return (
                f"Podman resolves {device.name} only from a spec in {places}, not in "
                f"{str(device.file.parent)!r}"
            )
    for node in edits.device_nodes:
        if rootless and node.path != node.host_path:
            return (
                f"rootless Podman cannot resolve a device that is {node.host_path} outside and "
                f"{node.path} inside"
            )
    return None
