"""Select the GPUs of a container, by name or by least use, and check that the container has them.

``auto:N`` is replaced by names here; a driver receives only ``all`` or names. A GPU selected by
``auto`` is locked until the container closes. The lock is a kernel lock, so it ends with the
process that holds it. Design: docs/design/engines.md#gpus.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hyperruntime.errors import (
    DeviceBusyError,
    DeviceNotFoundError,
    DeviceNotVisibleError,
    StorageError,
)
from hyperruntime.gpu.cdi import Device
from hyperruntime.gpu.devices import DeviceRegistry, load_devices, merge_edits
from hyperruntime.gpu.nvidia import PROGRAM, Gpu, list_gpus, only_allowed
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.owner import release_on_fork
from hyperruntime.host.process import find_program
from hyperruntime.logs import get_logger
from hyperruntime.spec import ExecResult

log = get_logger(__name__)

NVIDIA_KIND = "nvidia.com/gpu"
AMD_DEVICE = "/dev/kfd"  # of all AMD GPUs
# All runs of a user on a machine share it, so it cannot depend on TMPDIR: a job scheduler may set
# TMPDIR per job.
LOCK_ROOT = Path("/tmp")  # noqa: S108 - the directory in it is private, and its owner is checked
_AUTO = "auto:"
_MISSING = 'for path; do [ -e "$path" ] || printf "%s\\n" "$path"; done'
_NO_NVIDIA = 'for path in /dev/nvidia[0-9]*; do [ -e "$path" ] && exit; done; echo "/dev/nvidia*"'


def gpu_devices(gpus: str | Sequence[str], registry: DeviceRegistry) -> tuple[Device, ...]:
    """Return the CDI devices for ``gpus`` of a container spec.

    Args:
        gpus: ``all``, or names or indices; not ``auto:N``.
        registry: the devices of this machine.

    Raises:
        DeviceNotFoundError: no CDI spec describes a device with this name.
    """
    kinds = {device.kind for device in registry.devices.values() if device.kind.endswith("/gpu")}
    kind = kinds.pop() if len(kinds) == 1 else NVIDIA_KIND  # of indices
    if gpus == "all":
        known = registry.names(kind)
        whole = f"{kind}=all"
        return registry.resolve([whole] if whole in known or not known else known)
    names = (gpus,) if isinstance(gpus, str) else gpus
    return registry.resolve(name if "=" in name else f"{kind}={name}" for name in names)


class GpuGrant:
    """The GPUs of one container, from before its start to its end.

    Attributes:
        gpus: None, ``all`` or names; ``auto:N`` only before :meth:`take`.
    """

    def __init__(self, gpus: str | tuple[str, ...] | None) -> None:
        """Store the request; nothing is locked yet."""
        self._locks: list[int] = []
        self.gpus = gpus

    def take(self) -> str | tuple[str, ...] | None:
        """Replace ``auto:N`` by the indices of N locked GPUs, ``all`` by the granted ones; return
        the driver's GPUs.

        Raises:
            DeviceNotFoundError: the batch system granted no GPU, or not these.
            DeviceError: ``nvidia-smi`` is missing or fails.
            DeviceBusyError: too few GPUs are free.
            StorageError: the locks cannot be created.
        """
        if isinstance(self.gpus, str) and self.gpus.startswith(_AUTO):
            release_on_fork(self)
            self.gpus = self._lock(int(self.gpus.removeprefix(_AUTO)))
        elif self.gpus is not None and (granted := granted_gpus()) is not None:
            self.gpus = _within(self.gpus, granted)
        return self.gpus

    def check(self, run: Callable[..., ExecResult]) -> None:
        """Check that the device files of the GPUs exist in the container.

        Args:
            run: :meth:`Container.exec`.

        Raises:
            DeviceNotVisibleError: a device file is missing.
        """
        if self.gpus is None:
            return
        args = _visibility_args(self.gpus)
        result = run(args, timeout_s=limit_s("", "start"), workdir="/").check()
        if missing := tuple(result.stdout.decode(errors="replace").splitlines()):
            raise DeviceNotVisibleError(
                f"gpus={self.gpus!r} was requested, but {', '.join(missing)} is missing in the "
                "container; run `hyperrun doctor --gpu IMAGE` to find the reason",
                missing,
            )

    def give_back(self) -> None:
        """Release the locks; may be called again."""
        locks, self._locks = self._locks, []
        for descriptor in locks:
            os.close(descriptor)

    def descriptors(self) -> tuple[int, ...]:
        """Return the file descriptors of the locks; a forked child must close them."""
        return tuple(self._locks)

    def _lock(self, count: int) -> tuple[str, ...]:
        gpus = only_allowed(list_gpus())
        if len(gpus) < count:
            raise DeviceBusyError(
                f"gpus='auto:{count}' needs {count} GPUs, but only {len(gpus)} are visible here"
            )
        directory = lock_directory()
        taken: list[Gpu] = []
        for gpu in sorted(gpus, key=lambda gpu: gpu.load):
            if (
                len(taken) < count
                and (lock := _try_lock(directory / f"{gpu.uuid}.lock")) is not None
            ):
                self._locks.append(lock)
                taken.append(gpu)
        if len(taken) < count:
            self.give_back()
            raise DeviceBusyError(
                f"gpus='auto:{count}' needs {count} free GPUs, but of {len(gpus)} GPUs other "
                f"containers of this user hold {len(gpus) - len(taken)}; wait until one closes, "
                "start fewer at once, or name GPUs by index"
            )
        log.info("gpus taken", gpus=[gpu.index for gpu in taken])
        return tuple(gpu.index for gpu in sorted(taken, key=lambda gpu: int(gpu.index)))


def granted_gpus() -> tuple[str, ...] | None:
    """Return the indices or uuids in ``CUDA_VISIBLE_DEVICES``, which a batch system sets; None if
    it is not set.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; Slurm sets ``NoDevFiles`` for
    no GPU.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names = [part.strip() for part in text.split(",")]
    return tuple(
        name for name in names if name and name != "NoDevFiles" and not name.startswith("-")
    )


def _within(gpus: str | tuple[str, ...], granted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the granted GPUs for ``all``, and other GPUs unchanged.

    Raises:
        DeviceNotFoundError: none is granted, or a named one is not.
    """
    registry = load_devices()
    own = tuple(_known_name(name, registry) for name in granted)
    if gpus == "all":
        if not own:
            raise DeviceNotFoundError(
                "all", "CUDA_VISIBLE_DEVICES grants none; ask the batch system for GPUs"
            )
        return own
    asked = (gpus,) if isinstance(gpus, str) else gpus
    nodes = (
        {node.path for device in gpu_devices(own, registry) for node in device.edits.device_nodes}
        if own
        else set()
    )
    for name in asked:
        short = name.rpartition("=")[2]
        is_gpu = "=" not in name or name.partition("=")[0].endswith("/gpu")
        if is_gpu and short not in (*granted, *own):
            needed = {
                node.path
                for device in gpu_devices(name, registry)
                for node in device.edits.device_nodes
            }
            if not needed <= nodes:
                theirs = ", ".join(granted) or "none"
                raise DeviceNotFoundError(
                    name, f"CUDA_VISIBLE_DEVICES grants only {theirs}; ask for more GPUs"
                )
    return asked


def _known_name(name: str, registry: DeviceRegistry) -> str:
    """Return the index of a GPU whose uuid the CDI specs do not name."""
    if not name.startswith("GPU-") or any(known.endswith(f"={name}") for known in registry.names()):
        return name
    return next((gpu.index for gpu in list_gpus() if gpu.uuid.startswith(name)), name)


def lock_directory() -> Path:
    """Return the directory of this user's GPU locks on this machine.

    Raises:
        StorageError: it cannot be created, is a symbolic link, or belongs to another user.
    """
    path = LOCK_ROOT / f"hyperruntime-gpus-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise StorageError(
            f"GPU locks cannot be kept in {str(path)!r}: {error}; make it a directory that you own"
        ) from error
    if path.is_symlink() or status.st_uid != os.getuid():
        raise StorageError(
            f"{str(path)!r} (for GPU locks) belongs to another user; ask the owner to remove it"
        )
    return path


def _try_lock(path: Path) -> int | None:
    """Return a file descriptor that holds the lock, or None if another one holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageError(
            f"the GPU lock {str(path)!r} cannot be opened: {error}; remove it"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _visibility_args(gpus: str | tuple[str, ...]) -> list[str]:
    """Return a command that prints the missing device files; without a CDI spec, it expects the
    standard names of NVIDIA, or of AMD where only that is.
    """
    try:
        nodes = merge_edits(gpu_devices(gpus, load_devices())).device_nodes
        expected = [node.path for node in nodes]
    except DeviceNotFoundError:
        indices = [name for name in gpus if name.isdigit()] if isinstance(gpus, tuple) else []
        expected = [f"/dev/nvidia{index}" for index in indices]
        if find_program(PROGRAM) is None and os.path.exists(AMD_DEVICE):
            expected = [AMD_DEVICE]
    if not expected:
        return ["/bin/sh", "-c", _NO_NVIDIA]
    return ["/bin/sh", "-c", _MISSING, "check", *expected]
