"""Turn a spec into ``podman run`` arguments: pure, no I/O. Source: podman-run(1) of 4.3."""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Mapping, Sequence

import attrs

from hyperruntime.driver import Enforcement, Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.spec import ContainerSpec, Limits, Mount

NAME = "podman"
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


_HOW = ("cgroup", "rlimit", "no")
_TEXT, _FLAG = attrs.validators.instance_of(str), attrs.validators.instance_of(bool)
_COUNT = attrs.validators.and_(attrs.validators.instance_of(int), attrs.validators.ge(0))


@attrs.frozen(kw_only=True)
class Settings:
    """How Podman must be called on this machine; found by probing.

    Attributes:
        oci_runtime: passed as ``--runtime``, or "" for Podman's own choice.
        nofile: limit on open files that may be asked for, or 0 to ask for none.
        nproc: limit on processes that may be asked for, or 0.
        rootless: whether Podman runs as an ordinary user.
        limits: how each limit is enforced (``cgroup``, ``rlimit`` or ``no``).
        bridge: whether a private network with a way out works.
        uids: how many users a container's own user namespace has, or 0 where containers share Podman's.
        gids: the same of groups.
    """

    oci_runtime: str = attrs.field(default="", validator=_TEXT)
    nofile: int = attrs.field(default=0, validator=_COUNT)
    nproc: int = attrs.field(default=0, validator=_COUNT)
    rootless: bool = attrs.field(default=False, validator=_FLAG)
    limits: Mapping[str, Enforcement] = attrs.field(
        factory=dict, validator=attrs.validators.deep_mapping(_TEXT, attrs.validators.in_(_HOW))
    )
    bridge: bool = attrs.field(default=False, validator=_FLAG)
    uids: int = attrs.field(default=0, validator=_COUNT)
    gids: int = attrs.field(default=0, validator=_COUNT)


def base_args(settings: Settings) -> list[str]:
    """Return the arguments every run needs on this machine."""
    args = ["--runtime", settings.oci_runtime] if settings.oci_runtime else []
    return ["podman", *args]


def run_args(launch: Launch, settings: Settings, device_args: Sequence[str] = ()) -> list[str]:
    """Return the argv that starts a container with a shell attached.

    Args:
        launch: what to start.
        settings: how Podman must be called here.
        device_args: what gives it its devices.

    Raises:
        UnsupportedOptionError: a field cannot be honoured on this machine.
    """
    spec = launch.spec
    args = [
        *base_args(settings),
        "run",
        "--rm",
        "--interactive",
        "--init",
        "--pull=never",
        "--name",
        launch.name,
    ]
    args += ["--entrypoint", "/bin/sh", "--log-driver", "none", "--http-proxy=false", "--systemd=false"]
    args += ["--no-healthcheck", "--pidfile", pidfile(launch)]
    args += ["--security-opt", "no-new-privileges", "--security-opt", "label=disable", "--cap-drop", "all"]
    for capability in CAPABILITIES:
        args += ["--cap-add", capability]
    args += namespace_args(settings)
    args += network_args(spec, settings)
    args += limit_args(spec.limits, settings)
    args += device_args
    for mount in (launch.exchange, *spec.mounts):
        args += ["--mount", mount_option(mount)]
    if spec.read_only_rootfs:
        args += ["--read-only", "--read-only-tmpfs=false"]
        if spec.limits.tmpfs_bytes is None and not any(posixpath.normpath(m.target) == "/tmp" for m in spec.mounts):  # noqa: S108
            args += ["--tmpfs", "/tmp:rw,nosuid,nodev,mode=1777"]  # noqa: S108 - a path in the container
    for flag, value in (("--workdir", spec.workdir), ("--user", spec.user)):
        if value is not None:
            args += [flag, value]
    args += _pairs("--label", launch.labels)
    return [*args, spec.image]


def pidfile(launch: Launch) -> str:
    """Return where Podman writes the pid of the container's first process."""
    return f"{launch.private_dir}/pid"


def exec_args(name: str, user: str, settings: Settings) -> list[str]:
    """Return the argv that attaches another shell as another user."""
    return [*base_args(settings), "exec", "--interactive", "--user", user, name, "/bin/sh"]


def namespace_args(settings: Settings) -> list[str]:
    """Return what gives a container a user namespace of its own inside Podman's, with the same users.

    Since Linux 5.14 the kernel counts processes against RLIMIT_NPROC in each user namespace separately, so the limit
    holds for one container and not for all containers of a user together.
    """
    if not settings.uids:
        return []
    return ["--uidmap", f"0:0:{settings.uids}", "--gidmap", f"0:0:{settings.gids}"]


def network_args(spec: ContainerSpec, settings: Settings) -> list[str]:
    """Return the network's arguments; ``bridge`` is a private network with a way out."""
    if spec.network != "bridge":
        return ["--network", spec.network]
    if not settings.bridge:
        why = "no private network works on this machine (see `hyperrun doctor`); use network='none' or 'host'"
        raise UnsupportedOptionError(NAME, "network", why)
    return ["--network", "slirp4netns" if settings.rootless else "bridge"]


def limit_args(limits: Limits, settings: Settings) -> list[str]:
    """Return the limits' arguments; refuse each that would not be enforced."""
    args: list[str] = []
    nproc = settings.nproc
    for field, value, flags in (
        ("memory_bytes", limits.memory_bytes, ["--memory={}", "--memory-swap={}"]),
        ("cpus", limits.cpus, ["--cpus={}"]),
        ("pids", limits.pids, ["--pids-limit={}"]),
    ):
        if value is None:
            continue
        enforced = settings.limits.get(field, "no")
        if enforced == "cgroup":
            args += [flag.format(value) for flag in flags]
        elif enforced == "rlimit":
            nproc = min(nproc, int(value)) if nproc else int(value)
        else:
            why = "rootless Podman has no such cgroup controller here; run as root, use cgroup v2 with delegation"
            raise UnsupportedOptionError(NAME, f"limits.{field}", f"{why}, or leave it at None")
    if limits.pids is None and settings.limits.get("pids") == "cgroup":
        args.append("--pids-limit=-1")
    # Both, or none: passing one makes Podman set the other to a default that it may not be allowed to set.
    if settings.nofile and nproc:
        args += [
            "--ulimit",
            f"nofile={settings.nofile}:{settings.nofile}",
            "--ulimit",
            f"nproc={nproc}:{nproc}",
        ]
    if limits.tmpfs_bytes is not None:
        args += ["--tmpfs", f"/tmp:rw,nosuid,nodev,mode=1777,size={limits.tmpfs_bytes}"]  # noqa: S108
    return args


def mount_option(mount: Mount) -> str:
    """Return a ``--mount`` value; Podman reads it as one line of CSV, so nearly any path can be quoted.

    Raises:
        UnsupportedOptionError: Podman's reader would change the path.
    """
    if "\r\n" in mount.source + mount.target:
        raise UnsupportedOptionError(NAME, "mounts", "it takes no path with carriage return and newline; rename it")
    fields = ["type=bind", f"src={mount.source}", f"dst={mount.target}"]
    fields += ["ro=true"] if mount.read_only else []
    return csv_line(fields)


def csv_line(fields: Sequence[str]) -> str:
    """Return fields as one line of CSV, which is how Podman reads the values of several flags."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)  # what is in the terminator is quoted in a field
    return line.getvalue().removesuffix("\n")


def _pairs(flag: str, values: Mapping[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in (flag, f"{name}={value}")]


def probe_args(settings: Settings, rootfs: str, userland: Sequence[str], script: str, *, limited: bool) -> list[str]:
    """Return the argv of a container made of the host's own userland, to try an OCI runtime without any image."""
    args = [*base_args(settings), "run", "--rm", "--network", "none", "--log-driver", "none"]
    args += ["--security-opt", "no-new-privileges", "--security-opt", "label=disable", *namespace_args(settings)]
    if limited:
        args += ["--memory=67108864", "--memory-swap=67108864", "--pids-limit=100", "--cpus=0.5"]
    if settings.nofile:
        args += ["--ulimit", f"nofile={settings.nofile}:{settings.nofile}"]
        args += ["--ulimit", f"nproc={settings.nproc}:{settings.nproc}"]
    for path in userland:
        args += ["--mount", mount_option(Mount(source=path, target=path))]
    return [*args, "--rootfs", rootfs, "/bin/sh", "-c", script]
