"""Which GPUs a container gets: by name, or those used least; and whether they arrived.

``auto:N`` is settled here, before a driver sees it: a driver is asked for ``all`` or for names. A GPU taken by
``auto`` is locked until the container closes; the lock is the kernel's and dies with the process that has it.
Design: docs/decisions/0013-gpus.md.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hyperruntime.errors import DeviceBusyError, DeviceNotFoundError, DeviceNotVisibleError, StorageError
from hyperruntime.gpu.cdi import Device
from hyperruntime.gpu.devices import DeviceRegistry, load_devices, merge_edits
from hyperruntime.gpu.nvidia import Gpu, list_gpus, only_allowed
from hyperruntime.host.owner import release_on_fork
from hyperruntime.logs import get_logger
from hyperruntime.spec import ExecResult

log = get_logger(__name__)

NVIDIA_KIND = "nvidia.com/gpu"
# One place for every run of a user on a machine, whatever its TMPDIR: a job scheduler gives each job its own.
LOCK_ROOT = Path("/tmp")  # noqa: S108 - the directory made in it is private, and checked
_AUTO = "auto:"
_CHECK_TIMEOUT_S = 30.0
_MISSING = 'for path; do [ -e "$path" ] || printf "%s\\n" "$path"; done'
_NO_NVIDIA = 'for path in /dev/nvidia[0-9]*; do [ -e "$path" ] && exit; done; echo "/dev/nvidia*"'


def gpu_kind(registry: DeviceRegistry) -> str:
    """Return the CDI kind that indices are of: NVIDIA's, unless another vendor's GPUs are the only ones described."""
    kinds = dict.fromkeys(device.kind for device in registry.devices.values() if device.kind.endswith("/gpu"))
    return next(iter(kinds)) if len(kinds) == 1 else NVIDIA_KIND


def gpu_devices(gpus: str | Sequence[str], registry: DeviceRegistry) -> tuple[Device, ...]:
    """Return the CDI devices that a spec's ``gpus`` names; ``auto`` has been settled before.

    Raises:
        DeviceNotFoundError: a name is not described; says which are.
    """
    kind = gpu_kind(registry)
    if gpus == "all":
        known = registry.names(kind)
        whole = f"{kind}=all"
        return registry.resolve([whole] if whole in known or not known else known)
    names = (gpus,) if isinstance(gpus, str) else gpus
    return registry.resolve(name if "=" in name else f"{kind}={name}" for name in names)


class GpuGrant:
    """The GPUs of one container, from before its start to its end.

    Attributes:
        gpus: None, ``all``, names, or ``auto:N`` before :meth:`take`.
    """

    def __init__(self, gpus: str | tuple[str, ...] | None) -> None:
        """Note what is asked for; nothing is taken yet."""
        self._locks: list[int] = []
        self.gpus = gpus

    def take(self) -> str | tuple[str, ...] | None:
        """Settle ``auto:N``, lock what it takes, and return what the driver is asked for.

        Raises:
            DeviceError: there are no GPUs, or ``nvidia-smi`` cannot be asked.
            DeviceBusyError: too few are free.
        """
        if isinstance(self.gpus, str) and self.gpus.startswith(_AUTO):
            release_on_fork(self)
            self.gpus = self._lock(int(self.gpus.removeprefix(_AUTO)))
        return self.gpus

    def check(self, run: Callable[..., ExecResult]) -> None:
        """Look into the container for what was asked for.

        Args:
            run: :meth:`Container.exec`.

        Raises:
            DeviceNotVisibleError: something is not there.
        """
        if self.gpus is None:
            return
        args = _visibility_args(self.gpus)
        result = run(args, timeout_s=_CHECK_TIMEOUT_S, workdir="/").check()
        if missing := tuple(result.stdout.decode(errors="replace").splitlines()):
            raise DeviceNotVisibleError(
                f"gpus={self.gpus!r} was asked for and {', '.join(missing)} is not there in the container; "
                "`hyperrun doctor --gpu IMAGE` finds out why",
                missing,
            )

    def release(self) -> None:
        """Let others have them; may be called again."""
        locks, self._locks = self._locks, []
        for descriptor in locks:
            os.close(descriptor)

    def descriptors(self) -> tuple[int, ...]:
        """Return the locks, which a forked child may not keep."""
        return tuple(self._locks)

    def _lock(self, count: int) -> tuple[str, ...]:
        gpus = only_allowed(list_gpus())
        if len(gpus) < count:
            raise DeviceBusyError(f"gpus='auto:{count}' needs {count} GPUs and this machine lets us have {len(gpus)}")
        directory = lock_directory()
        taken: list[Gpu] = []
        for gpu in sorted(gpus, key=lambda gpu: gpu.load):
            if len(taken) < count and (lock := _try_lock(directory / f"{gpu.uuid}.lock")) is not None:
                self._locks.append(lock)
                taken.append(gpu)
        if len(taken) < count:
            self.release()
            raise DeviceBusyError(
                f"gpus='auto:{count}' needs {count} free GPUs, and of {len(gpus)} other containers of this user have "
                f"{len(gpus) - len(taken)}; wait until one closes, start fewer at once, or name GPUs by index"
            )
        log.info("gpus taken", gpus=[gpu.index for gpu in taken])
        return tuple(gpu.index for gpu in sorted(taken, key=lambda gpu: int(gpu.index)))


def lock_directory() -> Path:
    """Return the directory of this user's GPU locks on this machine.

    Raises:
        StorageError: it cannot be made, or is somebody else's.
    """
    path = LOCK_ROOT / f"hyperruntime-gpus-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise StorageError(
            f"GPU locks cannot be kept in {str(path)!r}: {error}; make it a directory of yours"
        ) from error
    if path.is_symlink() or status.st_uid != os.getuid():
        raise StorageError(f"{str(path)!r}, where GPU locks are kept, is somebody else's; ask its owner to remove it")
    return path


def _try_lock(path: Path) -> int | None:
    """Return a descriptor that holds a lock, or None while another has it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageError(f"the GPU lock {str(path)!r} cannot be opened: {error}; remove it") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _visibility_args(gpus: str | tuple[str, ...]) -> list[str]:
    """Return the command that prints what is missing; where no CDI spec says what to expect, NVIDIA's own names."""
    try:
        nodes = merge_edits(gpu_devices(gpus, load_devices())).device_nodes
        expected = [node.path for node in nodes]
    except DeviceNotFoundError:
        indices = [name for name in gpus if name.isdigit()] if isinstance(gpus, tuple) else []
        expected = [f"/dev/nvidia{index}" for index in indices]
    if not expected:
        return ["/bin/sh", "-c", _NO_NVIDIA]
    return ["/bin/sh", "-c", _MISSING, "check", *expected]
