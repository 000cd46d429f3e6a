"""Turn a spec into a request of the Engine API: pure, no I/O. Source: Docker Engine API 1.41 to
1.50, ContainerCreate.

The SDK's helpers need a live client and lack some fields. So this module builds the JSON bodies of
the API, which the SDK sends unchanged (``create_container_from_config``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from hyperruntime.driver import Enforcement, Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.engine_program import CAPABILITIES, asked_limits, needs_own_tmp, shell_args
from hyperruntime.spec import ContainerSpec, Limits, Mount

NAME = "docker"
UID_LABEL = "io.hyperruntime.docker.uid"
# Attach one client to all three streams until it disconnects.
_STREAMS = ("AttachStdin", "AttachStdout", "AttachStderr", "OpenStdin", "StdinOnce")
_ATTACHED = {**dict.fromkeys(_STREAMS, True), "Tty": False}
_HOST_CONFIG = {  # of every container
    "AutoRemove": True,
    "Init": True,
    "CapDrop": ["ALL"],
    "SecurityOpt": ["no-new-privileges", "label=disable"],
    "LogConfig": {"Type": "none"},
}
# Small values, to see in a trial container which limits the daemon enforces.
TRIAL_LIMITS = {
    "Memory": 64 * 1024**2,
    "MemorySwap": 64 * 1024**2,
    "NanoCpus": 500_000_000,
    "PidsLimit": 100,
}
# The rights to change the files of every user.
ALL_FILES = {"UsernsMode": "host", "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]}
_LIMIT_FIELDS = (
    ("Memory", "memory_bytes", 1),
    ("MemorySwap", "memory_bytes", 1),
    ("NanoCpus", "cpus", 1_000_000_000),
    ("PidsLimit", "pids", 1),
)
_TMPFS = "rw,exec,nosuid,nodev,mode=1777"
_NVIDIA = "nvidia.com/gpu="


@attrs.frozen(kw_only=True)
class Settings:
    """Results of the probe: what this machine's daemon can do.

    Attributes:
        rootless: whether the daemon runs as an ordinary user.
        limits: how each limit is enforced (``cgroup`` or ``no``).
        networks: the networks that work.
        cdi_dirs: directories from which the daemon reads CDI specs; empty if it does not accept CDI
            device names.
        cdi_devices: the CDI device names that the daemon lists; empty before Docker 28.3.
        nvidia: whether NVIDIA's container runtime or hook is installed.
    """

    rootless: bool = False
    limits: Mapping[str, Enforcement] = attrs.field(factory=dict)
    networks: tuple[str, ...] = ("none",)
    cdi_dirs: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    nvidia: bool = False


def container_config(launch: Launch, settings: Settings) -> dict[str, Any]:
    """Return the body of the request that creates a container with a shell to attach to.

    ``StdinOnce`` ends the container after its owner's death: the daemon closes its input when the
    only attached client disconnects.

    Args:
        launch: the container to start.
        settings: the results of the probe.

    Raises:
        UnsupportedOptionError: a field cannot be honoured on this machine.
    """
    spec = launch.spec
    command = shell_args(spec.workdir)
    env = {**spec.env, **no_gpu_env(spec, settings)}
    config: dict[str, Any] = {
        "Image": "".join(launch.layers) or spec.image,
        "Entrypoint": command[:1],
        "Cmd": command[1:],
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": {**launch.labels, UID_LABEL: str(os.getuid())},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host_config(launch, settings),
        **_ATTACHED,
    }
    if spec.user is not None:
        config["User"] = spec.user
    if spec.workdir is not None:
        config["WorkingDir"] = "/"
    return config


def host_config(launch: Launch, settings: Settings) -> dict[str, Any]:
    """Return the ``HostConfig`` part of the body.

    Args:
        launch: the container to start.
        settings: the results of the probe.

    Raises:
        UnsupportedOptionError: a field cannot be honoured on this machine.
    """
    spec = launch.spec
    config: dict[str, Any] = {
        **_HOST_CONFIG,
        "CapAdd": list(CAPABILITIES),
        "NetworkMode": network_mode(spec, settings)
        if launch.joins is None
        else f"container:{launch.joins.id}",
        "Mounts": [mount_entry(mount) for mount in (launch.exchange, *spec.mounts)],
        **limit_fields(spec.limits, settings),
    }
    if spec.read_only_rootfs:
        config["ReadonlyRootfs"] = True
    if spec.limits.tmpfs_bytes is not None:
        config["Tmpfs"] = {"/tmp": f"{_TMPFS},size={spec.limits.tmpfs_bytes}"}  # noqa: S108 - in the container
    elif needs_own_tmp(spec):
        config["Tmpfs"] = {"/tmp": _TMPFS}  # noqa: S108
    if spec.limits.shm_bytes is not None:
        config["ShmSize"] = spec.limits.shm_bytes
    if spec.gpus is not None:
        config["DeviceRequests"] = device_requests(gpu_names(spec.gpus), settings)
    return config


def no_gpu_env(spec: ContainerSpec, settings: Settings) -> dict[str, str]:
    """Return the environment that keeps GPUs out of a container that did not request them.

    If NVIDIA's runtime is the daemon's default, it gives all GPUs to each image whose environment
    names them, as NVIDIA's own images do. For a DeviceRequest the daemon sets the variable itself.

    Source: NVIDIA Container Toolkit, "Environment variables".
    """
    by_request = spec.gpus is not None and not cdi_names(gpu_names(spec.gpus), settings)
    return {"NVIDIA_VISIBLE_DEVICES": "void"} if settings.nvidia and not by_request else {}


def network_mode(spec: ContainerSpec, settings: Settings) -> str:
    """Return the network's name; ``bridge`` is the daemon's default network.

    Raises:
        UnsupportedOptionError: the network does not work on this machine.
    """
    if spec.network not in settings.networks:
        why = (
            "this network does not work on this machine (see `hyperrun doctor`); use network='none'"
        )
        raise UnsupportedOptionError(NAME, "network", why)
    return spec.network


def limit_fields(limits: Limits, settings: Settings) -> dict[str, Any]:
    """Return the fields of the limits.

    Args:
        limits: the limits of the spec.
        settings: the results of the probe.

    Raises:
        UnsupportedOptionError: the daemon does not enforce a limit.
    """
    why = "the probe showed that the daemon does not enforce it; use a daemon with that cgroup controller"
    asked = asked_limits(NAME, limits, settings.limits, why)
    return {
        name: round(getattr(limits, field) * factor)
        for name, field, factor in _LIMIT_FIELDS
        if field in asked
    }


def mount_entry(mount: Mount) -> dict[str, Any]:
    """Return a bind mount; unlike ``Binds``, it can hold every path, and a missing source is an
    error.
    """
    return {
        "Type": "bind",
        "Source": os.path.abspath(mount.source),
        "Target": mount.target,
        "ReadOnly": mount.read_only,
    }


def gpu_names(gpus: str | Sequence[str]) -> tuple[str, ...]:
    """Return the requested GPUs as a tuple: ``all``, indices or CDI names."""
    return (gpus,) if isinstance(gpus, str) else tuple(gpus)


def cdi_names(names: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Return the CDI names of the requested GPUs; empty if they are requested from NVIDIA's runtime
    instead.

    Args:
        names: ``all``, indices or CDI names.
        settings: the results of the probe.

    Raises:
        UnsupportedOptionError: CDI names are requested, but the daemon does not accept them.
    """
    qualified = any("=" in name for name in names)
    if qualified and not settings.cdi_dirs:
        why = (
            "this daemon does not accept CDI names (Docker 25 and newer can, with "
            "`features.cdi`; 28.2 by default)"
        )
        raise UnsupportedOptionError(
            NAME, "gpus", f"{why}; use gpus='all' or indices, or a newer Docker"
        )
    if qualified or (settings.cdi_dirs and not settings.nvidia):
        return tuple(name if "=" in name else f"{_NVIDIA}{name}" for name in names)
    return ()


def device_requests(names: Sequence[str], settings: Settings) -> list[dict[str, Any]]:
    """Return the device requests for GPUs.

    Args:
        names: ``all``, indices or CDI names.
        settings: the results of the probe.

    Raises:
        UnsupportedOptionError: the daemon cannot give GPUs to a container.

    Source: Engine API, DeviceRequest; docker-run(1), --gpus.
    """
    if by_cdi := cdi_names(names, settings):
        return [{"Driver": "cdi", "DeviceIDs": list(by_cdi)}]
    if not settings.nvidia:
        why = (
            "the daemon can give no GPU: it does not accept CDI names, and NVIDIA's container "
            "runtime is missing"
        )
        raise UnsupportedOptionError(
            NAME, "gpus", f"{why}; install nvidia-container-toolkit, or leave gpus at None"
        )
    chosen: dict[str, Any] = {"Count": -1} if "all" in names else {"DeviceIDs": list(names)}
    return [{"Driver": "nvidia", "Capabilities": [["gpu"]], **chosen}]


def trial_config(
    image: str, mounts: Sequence[Mount], script: str, host: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the body of a container of the host's userland, which tests the daemon without a real
    image.

    Args:
        image: an image with links to the host's userland.
        mounts: its mounts, the userland included.
        script: shell commands to run.
        host: further fields of ``HostConfig``; without ``NetworkMode`` it has no network.
    """
    return {
        "Image": image,
        "Entrypoint": ["/bin/sh"],
        "Cmd": ["-c", script],
        "HostConfig": {
            **_HOST_CONFIG,
            "NetworkMode": "none",
            "Mounts": [mount_entry(mount) for mount in mounts],
            **host,
        },
        **_ATTACHED,
    }
