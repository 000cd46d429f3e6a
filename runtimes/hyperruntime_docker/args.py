"""Turn a spec into what the Engine API takes: pure, no I/O. Source: Docker Engine API 1.41 to 1.50, ContainerCreate.

The SDK's own helpers need a live client and leave out fields we need, so these are the API's own words, which the
SDK sends as they are (``create_container_from_config``).
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from hyperruntime.driver import Enforcement, Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.spec import ContainerSpec, Limits, Mount

NAME = "docker"
UID_LABEL = "io.hyperruntime.docker.uid"
NO_WORKDIR = "hyperruntime: the working directory cannot be entered"
# What a root shell in a container needs: files of any owner, other users, and nothing of the host.
CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "SYS_CHROOT",
)
_SECURITY = ("no-new-privileges", "label=disable")
_TMPFS = "rw,exec,nosuid,nodev,mode=1777"
_HOW = ("cgroup", "no")
_TEXT, _FLAG = attrs.validators.instance_of(str), attrs.validators.instance_of(bool)
_TEXTS = attrs.validators.deep_iterable(_TEXT)
_NVIDIA = "nvidia.com/gpu="


def _strings(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@attrs.frozen(kw_only=True)
class Settings:
    """What this machine's daemon can do; found by probing.

    Attributes:
        rootless: whether the daemon runs as an ordinary user.
        limits: how each limit is enforced (``cgroup`` or ``no``).
        networks: the networks that work.
        cdi_dirs: where the daemon reads CDI specs; none where it takes no CDI device names.
        cdi_devices: the names it lists itself (Docker 28.3 and newer; older ones list none).
        nvidia: whether NVIDIA's own runtime or hook is installed for it.
    """

    rootless: bool = attrs.field(default=False, validator=_FLAG)
    limits: Mapping[str, Enforcement] = attrs.field(
        factory=dict, validator=attrs.validators.deep_mapping(_TEXT, attrs.validators.in_(_HOW))
    )
    networks: tuple[str, ...] = attrs.field(default=("none",), converter=_strings, validator=_TEXTS)
    cdi_dirs: tuple[str, ...] = attrs.field(default=(), converter=_strings, validator=_TEXTS)
    cdi_devices: tuple[str, ...] = attrs.field(default=(), converter=_strings, validator=_TEXTS)
    nvidia: bool = attrs.field(default=False, validator=_FLAG)


def container_config(launch: Launch, settings: Settings) -> dict[str, Any]:
    """Return the body of the call that makes a container with a shell to attach to.

    ``StdinOnce`` is what ends the container when its owner is gone: the daemon closes its input when the one
    attached client leaves.

    Raises:
        UnsupportedOptionError: a field cannot be honoured on this machine.
    """
    spec = launch.spec
    command = shell_args(spec.workdir)
    config: dict[str, Any] = {
        "Image": spec.image,
        "Entrypoint": command[:1],
        "Cmd": command[1:],
        "Env": env_list({**spec.env, **no_gpu_env(spec, settings)}),
        "Labels": {**launch.labels, UID_LABEL: str(os.getuid())},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host_config(launch, settings),
        **attached_streams(),
    }
    if spec.user is not None:
        config["User"] = spec.user
    if spec.workdir is not None:
        config["WorkingDir"] = "/"
    return config


def host_config(launch: Launch, settings: Settings) -> dict[str, Any]:
    """Return the part of the body that concerns this machine."""
    spec = launch.spec
    config: dict[str, Any] = {
        **base_host_config(),
        "CapAdd": list(CAPABILITIES),
        "NetworkMode": network_mode(spec, settings),
        "Mounts": [mount_entry(mount) for mount in (launch.exchange, *spec.mounts)],
        **limit_fields(spec.limits, settings),
    }
    if spec.read_only_rootfs:
        config["ReadonlyRootfs"] = True
    if spec.limits.tmpfs_bytes is not None:
        config["Tmpfs"] = {"/tmp": f"{_TMPFS},size={spec.limits.tmpfs_bytes}"}  # noqa: S108 - in the container
    elif spec.read_only_rootfs and not any(posixpath.normpath(mount.target) == "/tmp" for mount in spec.mounts):  # noqa: S108
        config["Tmpfs"] = {"/tmp": _TMPFS}  # noqa: S108
    if spec.gpus is not None:
        config["DeviceRequests"] = device_requests(gpu_names(spec.gpus), settings)
    return config


def base_host_config() -> dict[str, Any]:
    """Return what every container of ours has."""
    return {
        "AutoRemove": True,
        "Init": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": list(_SECURITY),
        "LogConfig": {"Type": "none"},
    }


def attached_streams() -> dict[str, bool]:
    """Return the fields that attach one client to all three streams, for as long as it lives."""
    names = ("AttachStdin", "AttachStdout", "AttachStderr", "OpenStdin", "StdinOnce")
    return {**dict.fromkeys(names, True), "Tty": False}


def shell_args(workdir: str | None) -> list[str]:
    """Return the argv of a shell in a directory; Docker itself would silently make a directory that is missing."""
    if workdir is None:
        return ["/bin/sh"]
    script = f'cd -- "$1" 2>/dev/null || {{ echo "{NO_WORKDIR}" >&2; exit 1; }}; exec /bin/sh'
    return ["/bin/sh", "-c", script, "sh", workdir]


def no_gpu_env(spec: ContainerSpec, settings: Settings) -> dict[str, str]:
    """Return what keeps GPUs out that nobody asked for.

    Where NVIDIA's runtime is the daemon's default one it gives all GPUs to any image whose environment names them, as
    NVIDIA's own do. Source: NVIDIA Container Toolkit, "Environment variables"; by DeviceRequest the daemon sets it.
    """
    by_request = spec.gpus is not None and not cdi_names(gpu_names(spec.gpus), settings)
    return {"NVIDIA_VISIBLE_DEVICES": "void"} if settings.nvidia and not by_request else {}


def env_list(env: Mapping[str, str]) -> list[str]:
    """Return an environment as the API takes it."""
    return [f"{name}={value}" for name, value in env.items()]


def network_mode(spec: ContainerSpec, settings: Settings) -> str:
    """Return the network's name; ``bridge`` is the daemon's default one."""
    if spec.network not in settings.networks:
        why = "the daemon has no such network on this machine (see `hyperrun doctor`); use network='none'"
        raise UnsupportedOptionError(NAME, "network", why)
    return spec.network


def limit_fields(limits: Limits, settings: Settings) -> dict[str, Any]:
    """Return the limits' fields; refuse each that would not be enforced."""
    fields: dict[str, Any] = {}
    for field, value, wanted in (
        ("memory_bytes", limits.memory_bytes, {"Memory": limits.memory_bytes, "MemorySwap": limits.memory_bytes}),
        ("cpus", limits.cpus, {"NanoCpus": round((limits.cpus or 0) * 1_000_000_000)}),
        ("pids", limits.pids, {"PidsLimit": limits.pids}),
    ):
        if value is None:
            continue
        if settings.limits.get(field, "no") == "no":
            why = "this machine's daemon does not enforce it (tried); use a daemon with that cgroup controller"
            raise UnsupportedOptionError(NAME, f"limits.{field}", f"{why}, or leave it at None")
        fields |= wanted
    return fields


def mount_entry(mount: Mount) -> dict[str, Any]:
    """Return a bind mount; unlike ``Binds`` it holds any path, and a source that is missing is an error."""
    return {
        "Type": "bind",
        "Source": os.path.abspath(mount.source),
        "Target": mount.target,
        "ReadOnly": mount.read_only,
    }


def gpu_names(gpus: str | Sequence[str]) -> tuple[str, ...]:
    """Return what was asked for as a tuple: ``all``, indices or CDI names."""
    return (gpus,) if isinstance(gpus, str) else tuple(gpus)


def cdi_names(names: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Return the CDI names that stand for what was asked for, or nothing where Docker's own way is taken.

    Raises:
        UnsupportedOptionError: CDI names alone can say it, and the daemon takes none.
    """
    qualified = any("=" in name for name in names)
    if qualified and not settings.cdi_dirs:
        why = "this daemon takes no CDI names (Docker 25 and newer do, with `features.cdi`; 28.2 by default)"
        raise UnsupportedOptionError(NAME, "gpus", f"{why}; use gpus='all' or indices, or a newer Docker")
    if qualified or (settings.cdi_dirs and not settings.nvidia):
        return tuple(name if "=" in name else f"{_NVIDIA}{name}" for name in names)
    return ()


def device_requests(names: Sequence[str], settings: Settings) -> list[dict[str, Any]]:
    """Return the device requests for GPUs. Source: Engine API, DeviceRequest; docker-run(1), --gpus.

    Raises:
        UnsupportedOptionError: the daemon can give no GPU to a container.
    """
    if by_cdi := cdi_names(names, settings):
        return [{"Driver": "cdi", "DeviceIDs": list(by_cdi)}]
    if not settings.nvidia:
        why = "its daemon gives no GPU to a container: it takes no CDI names, and NVIDIA's container runtime is missing"
        raise UnsupportedOptionError(NAME, "gpus", f"{why}; install nvidia-container-toolkit, or leave gpus at None")
    chosen: dict[str, Any] = {"Count": -1} if "all" in names else {"DeviceIDs": list(names)}
    return [{"Driver": "nvidia", "Capabilities": [["gpu"]], **chosen}]


def program_config(image: str, mounts: Sequence[Mount], script: str) -> dict[str, Any]:
    """Return the body of a container of the host's own userland that may change the files of every user."""
    config = probe_config(image, mounts, script, "none")
    config["HostConfig"] |= {"UsernsMode": "host", "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]}
    return config


def probe_config(
    image: str, mounts: Sequence[Mount], script: str, network: str, *, limited: bool = False
) -> dict[str, Any]:
    """Return the body of a container made of the host's own userland, to try the daemon without any image."""
    config: dict[str, Any] = {
        **base_host_config(),
        "NetworkMode": network,
        "Mounts": [mount_entry(mount) for mount in mounts],
    }
    if limited:
        config |= {"Memory": 64 * 1024**2, "MemorySwap": 64 * 1024**2, "NanoCpus": 500_000_000, "PidsLimit": 100}
    return {
        "Image": image,
        "Entrypoint": ["/bin/sh"],
        "Cmd": ["-c", script],
        "HostConfig": config,
        **attached_streams(),
    }
