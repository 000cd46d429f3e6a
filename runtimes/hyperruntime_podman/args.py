"""Turn a spec into arguments of Podman, without the program itself: pure, no I/O. Source:
podman-run(1) of 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from hyperruntime.driver import Enforcement, Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.engine_program import (
    CAPABILITIES,
    asked_limits,
    mount_option,
    needs_own_tmp,
    shell_args,
)
from hyperruntime.host.inherited import stricter
from hyperruntime.spec import ContainerSpec, Limits, Mount

NAME = "podman"
# The values of ``--network`` for a private network with external access. pasta's options exclude
# what containers.conf may allow: the host's loopback behind the gateway, and ports in either
# direction. slirp4netns allows neither by default.
BRIDGE = "bridge"
PASTA = "pasta:--no-map-gw,-t,none,-u,none,-T,none,-U,none"
SLIRP = "slirp4netns:allow_host_loopback=false"
OWN_DIRECTORY = "hyperruntime"  # in the directories of the user's store

_COUNT = attrs.validators.ge(0)
_LIMIT_FLAGS = {
    "memory_bytes": ("--memory={}", "--memory-swap={}"),
    "cpus": ("--cpus={}",),
    "pids": ("--pids-limit={}",),
}


@attrs.frozen(kw_only=True)
class Settings:
    """Results of the probe that decide how Podman is called on this machine.

    Attributes:
        oci_runtime: the value of ``--runtime``, or "" for Podman's default.
        nofile: the highest limit on open files that a container may set, or 0 to set none.
        nproc: the highest limit on processes that a container may set, or 0 to set none.
        rootless: whether Podman runs as an ordinary user.
        limits: how each limit is enforced (``cgroup``, ``rlimit`` or ``no``).
        bridge: the value of ``--network`` for a private network with external access; "" means
            that none works.
        isolated: whether a container can have no network.
        uids: the number of users in a container's own user namespace, or 0 if containers share
            Podman's.
        gids: the number of groups in it.
        seccomp: the file of the seccomp filter; "" means Podman's default.
        root: the directory of this library's own store, in which containers run; "" means the
            user's store.
        run_root: the directory of its files of running containers.
        capabilities: those that Podman gives to containers by default; empty if it does not say.
    """

    oci_runtime: str = ""
    nofile: int = attrs.field(default=0, validator=_COUNT)
    nproc: int = attrs.field(default=0, validator=_COUNT)
    rootless: bool = False
    limits: Mapping[str, Enforcement] = attrs.field(factory=dict)
    bridge: str = ""
    isolated: bool = True
    uids: int = attrs.field(default=0, validator=_COUNT)
    gids: int = attrs.field(default=0, validator=_COUNT)
    seccomp: str = ""
    root: str = ""
    run_root: str = ""
    capabilities: tuple[str, ...] = ()

    @property
    def has_users(self) -> bool:
        """Whether a container has other users than root; a user without subordinate ids has one
        id.
        """
        return self.uids != 1


def command_args(settings: Settings, verb: str) -> list[str]:
    """Return the first words of a command that runs something: the store, the verb and the OCI
    runtime.

    Podman takes global options also behind the verb, and podman-hpc takes them only there.
    """
    runtime = ["--runtime", settings.oci_runtime] if settings.oci_runtime else []
    return [*own_args(settings), verb, *runtime]


def capability_args(default: Sequence[str]) -> list[str]:
    """Return the options for the capabilities of root in the container.

    Podman gives added ones to every main user, as ambient ones; what it gives by default, only to
    root. So the others of the default are taken away, where they are known.

    Args:
        default: those of the default.
    """
    known = default or ("all",)
    args = [word for name in known if name not in CAPABILITIES for word in ("--cap-drop", name)]
    added = (name for name in CAPABILITIES if name not in default)
    return [*args, *(word for name in added for word in ("--cap-add", name))]


def own_args(settings: Settings) -> tuple[str, ...]:
    """Return the options of the store in which containers run: none if it is the user's."""
    return store_args(settings.root, settings.run_root) if settings.root else ()


def in_user_store(settings: Settings) -> Settings:
    """Return the settings for the user's store."""
    return attrs.evolve(settings, root="", run_root="")


def store_args(root: str, run_root: str) -> tuple[str, ...]:
    """Return the global options that name a store of this library.

    Args:
        root: the directory of the store.
        run_root: the directory of its files of running containers.
    """
    return ("--root", root, "--runroot", run_root, "--storage-driver", "overlay")


def run_args(
    launch: Launch, settings: Settings, device_args: Sequence[str] = (), image: str = ""
) -> list[str]:
    """Return the words that start a container with a shell attached.

    Args:
        launch: the container to start.
        settings: the results of the probe.
        device_args: the options that give it devices.
        image: the image in the store of the settings; "" means the spec's.

    Raises:
        UnsupportedOptionError: a field cannot be honoured on this machine.
    """
    spec = launch.spec
    args = [
        *command_args(settings, "run"),
        "--rm",
        "--interactive",
        "--pull=never",
        "--name",
        launch.name,
    ]
    args += [
        "--entrypoint",
        "/bin/sh",
        "--log-driver",
        "none",
        "--http-proxy=false",
        "--systemd=false",
    ]
    args += ["--no-healthcheck", "--pidfile", pidfile(launch)]
    args += security_args(settings)
    args += capability_args(settings.capabilities)
    args += namespace_args(settings)
    args += joined_args(launch, settings) if launch.joins else network_args(spec, settings)
    args += limit_args(spec.limits, settings)
    args += device_args
    for mount in (launch.exchange, *spec.mounts):
        args += ["--mount", mount_option(NAME, mount)]
    if spec.read_only_rootfs:
        args += ["--read-only", "--read-only-tmpfs=false"]
        if spec.limits.tmpfs_bytes is None and needs_own_tmp(spec):
            args += ["--tmpfs", "/tmp:rw,nosuid,nodev,mode=1777"]  # noqa: S108 - a path in the container
    if spec.user is not None:
        args += ["--user", spec.user]
    for name, value in launch.labels.items():
        args += ["--label", f"{name}={value}"]
    # No --init: catatonit leaves SIGTSTP, SIGTTIN and SIGTTOU blocked in all processes, so no
    # program could be stopped.
    return [*args, image or spec.image, *shell_args(spec.workdir, is_init=True)[1:]]


def pidfile(launch: Launch) -> str:
    """Return the path where Podman writes the pid of the container's first process."""
    # a rollback starts the next container before the last one, which removes the file, has ended
    return f"{launch.private_dir}/{launch.name}.pid"


def exec_args(launch: Launch, user: str, settings: Settings) -> list[str]:
    """Return the words that attach another shell as another user.

    Args:
        launch: the container.
        user: the user of the shell.
        settings: the results of the probe.
    """
    shell = shell_args(launch.spec.workdir)
    return [*command_args(settings, "exec"), "--interactive", "--user", user, launch.name, *shell]


def security_args(settings: Settings) -> list[str]:
    """Return the options that take rights away; SELinux's label would hide our directories."""
    options = ["no-new-privileges", "label=disable"]
    options += [f"seccomp={settings.seccomp}"] if settings.seccomp else []
    return [word for option in options for word in ("--security-opt", option)]


def namespace_args(settings: Settings) -> list[str]:
    """Return the options that give a container its own user namespace inside Podman's, with the
    same users.

    Since Linux 5.14 the kernel counts processes against RLIMIT_NPROC per user namespace. So the
    limit applies to one container and not to all containers of a user together.
    """
    if not settings.uids:
        return []
    return ["--uidmap", f"0:0:{settings.uids}", "--gidmap", f"0:0:{settings.gids}"]


def network_args(spec: ContainerSpec, settings: Settings) -> list[str]:
    """Return the network's options; ``bridge`` is a private network with external access.

    Raises:
        UnsupportedOptionError: no private network works on this machine.
    """
    # its services have no rights in its network, and theirs listen on any port
    ports = ["--sysctl", "net.ipv4.ip_unprivileged_port_start=0"] if spec.services else []
    if spec.engine_network == "none" and not settings.isolated:
        why = "every container here has the network of the host (see `hyperrun doctor`); use 'host'"
        raise UnsupportedOptionError(NAME, "network", why)
    if spec.engine_network != "bridge":
        return ["--network", spec.engine_network, *ports]
    if not settings.bridge:
        why = (
            "no private network works on this machine (see `hyperrun doctor`); use "
            "network='none' or 'host'"
        )
        raise UnsupportedOptionError(NAME, "network", why)
    return ["--network", settings.bridge, *ports]


def joined_args(launch: Launch, settings: Settings) -> list[str]:
    """Return the options for the network of another container.

    In a user namespace of its own, a container cannot mount the ``/sys`` of this network. The OCI
    runtime shows that of the host, whose interfaces are hidden.
    """
    assert launch.joins is not None
    hidden = ["--security-opt", "mask=/sys/class/net:/sys/devices/virtual/net"]
    return ["--network", f"container:{launch.joins.id}", *(hidden if settings.uids else ())]


def limit_args(limits: Limits, settings: Settings) -> list[str]:
    """Return the options of the limits.

    Args:
        limits: the limits of the spec.
        settings: the results of the probe.

    Raises:
        UnsupportedOptionError: Podman cannot enforce a limit on this machine.
    """
    args: list[str] = []
    nproc = settings.nproc
    why = "rootless Podman has no such cgroup controller here; run as root, use cgroup v2 with delegation"
    for field, how in asked_limits(NAME, limits, settings.limits, why).items():
        value = getattr(limits, field)
        if how == "cgroup":
            args += [flag.format(value) for flag in _LIMIT_FLAGS[field]]
        else:
            nproc = stricter(value, nproc)
    if limits.pids is None and settings.limits.get("pids") == "cgroup":
        args.append("--pids-limit=-1")
    args += ulimit_args(settings.nofile, nproc)
    if limits.tmpfs_bytes is not None:
        args += ["--tmpfs", f"/tmp:rw,nosuid,nodev,mode=1777,size={limits.tmpfs_bytes}"]  # noqa: S108
    if limits.shm_bytes is not None:
        args.append(f"--shm-size={limits.shm_bytes}b")
    return args


def ulimit_args(nofile: int, nproc: int) -> list[str]:
    """Return the options of the limits on open files and processes: both or none. With one of
    them, Podman sets the other to a default that it may not be allowed to set.
    """
    if not (nofile and nproc):
        return []
    return ["--ulimit", f"nofile={nofile}:{nofile}", "--ulimit", f"nproc={nproc}:{nproc}"]


def build_args(settings: Settings) -> list[str]:
    """Return the first words of a build, whose steps have the limits of containers."""
    ulimits = ulimit_args(settings.nofile, settings.nproc)
    return [*command_args(in_user_store(settings), "build"), *ulimits]


def probe_args(
    settings: Settings,
    rootfs: str,
    userland: Sequence[str],
    script: str,
    *,
    limited: bool = False,
    network: str = "none",
) -> list[str]:
    """Return the words of a container of the host's userland, which tests an OCI runtime without an
    image.

    Args:
        settings: the settings to test.
        rootfs: a root file system of links to the userland.
        userland: the host's directories to mount.
        script: shell commands to run.
        limited: whether to set a small value for each limit.
        network: the value of ``--network``.
    """
    args = [*command_args(settings, "run"), "--rm", "--network", network, "--log-driver", "none"]
    args += [*security_args(settings), *namespace_args(settings)]
    if limited:
        args += ["--memory=67108864", "--memory-swap=67108864", "--pids-limit=100", "--cpus=0.5"]
    args += ulimit_args(settings.nofile, settings.nproc)
    for path in userland:
        args += ["--mount", mount_option(NAME, Mount(source=path, target=path))]
    return [*args, "--rootfs", rootfs, "/bin/sh", "-c", script]
