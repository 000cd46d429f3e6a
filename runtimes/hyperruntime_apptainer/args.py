"""Turn a spec into the argv that starts a container: pure, no I/O. Sources: apptainer-exec(1) of 1.4, unshare(1).

From the outside in: a *keeper* (a shell of the host that removes the container's files when it has ended),
``unshare`` (this user becomes root of a user namespace, in namespaces that end with it), a shell that mounts what
only that root may mount, ``apptainer exec``, and inside it a *prelude* that becomes the attached shell.
"""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Mapping, Sequence

import attrs

from hyperruntime.driver import Enforcement, Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.gpu.cdi import DeviceNode
from hyperruntime.host.inherited import stricter
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_apptainer.texts import CONFIG, DEVICES, KEEPER, PRELUDE, PREPARE

NAME = "apptainer"
# What a root shell needs, as on the other engines; root of a user namespace holds it over that namespace only.
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
ROOT_USERS = ("root", "0", "0:0", "root:root", "root:0", "0:root")
MIN_PIDS = 40
LIBRARIES = "/opt/hyperruntime-gpu"
HOST_SYS = ("block", "bus", "class", "dev", "devices", "kernel", "module")
_HOW = ("cgroup", "rlimit", "no")
_TEXT = attrs.validators.instance_of(str)


@attrs.frozen(kw_only=True)
class Settings:
    """How Apptainer must be called on this machine; found by probing.

    Attributes:
        sysfs: whether a private ``/sys`` can be mounted.
        limits: how each limit is enforced (``cgroup``, ``rlimit`` or ``no``).
        nproc: the most processes this user may ask for, or 0 for no such ceiling.
    """

    sysfs: bool = attrs.field(default=True, validator=attrs.validators.instance_of(bool))
    limits: Mapping[str, Enforcement] = attrs.field(
        factory=dict, validator=attrs.validators.deep_mapping(_TEXT, attrs.validators.in_(_HOW))
    )
    nproc: int = attrs.field(default=0, validator=attrs.validators.instance_of(int))


@attrs.frozen(kw_only=True)
class Places:
    """Where one container's files are on the host.

    Attributes:
        image: the sandbox directory or SIF it is made from.
        files: a directory of its own on scratch; removed with it.
        record: the file that says whose it is; removed with it.
        workdir: the image's own working directory.
    """

    image: str
    files: str
    record: str
    workdir: str = "/"

    @property
    def layer(self) -> str:
        """What the container writes."""
        return f"{self.files}/layer"

    @property
    def config(self) -> str:
        """Apptainer's configuration for it."""
        return f"{self.files}/apptainer.conf"

    @property
    def sys(self) -> str:
        """Its ``/sys``."""
        return f"{self.files}/sys"

    @property
    def tmp(self) -> str:
        """Its ``/tmp``, where that is a memory file system."""
        return f"{self.files}/memory"

    @property
    def devices(self) -> str:
        """Its ``/dev``, where that is made by us."""
        return f"{self.files}/dev"

    @property
    def libraries(self) -> str:
        """Links to the libraries that its devices bring."""
        return f"{self.files}/libraries"


@attrs.frozen(kw_only=True)
class Gpus:
    """What GPUs take.

    Attributes:
        nv: whether Apptainer looks for NVIDIA's devices and libraries itself, all of them.
        nodes: device files.
        mounts: of libraries and programs.
        libraries: names by which the dynamic linker must find libraries, each with its path in the container.
        library_path: where the dynamic linker looks beside them.
        driver_major: libraries of the image for a newer driver than this are preferred; "" for never.
        env: variables that every process needs.
    """

    nv: bool = False
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    libraries: Mapping[str, str] = attrs.field(factory=dict)
    library_path: str = ""
    driver_major: str = ""
    env: Mapping[str, str] = attrs.field(factory=dict)


NO_GPUS = Gpus()


def run_args(launch: Launch, settings: Settings, places: Places, gpus: Gpus = NO_GPUS) -> list[str]:
    """Return the argv that starts a container with a shell attached.

    Args:
        launch: what to start.
        settings: how Apptainer must be called here.
        places: where its files are.
        gpus: what its GPUs take.

    Raises:
        UnsupportedOptionError: a field cannot be honoured on this machine.
    """
    spec = launch.spec
    refuse(spec, settings)
    return [
        *("/bin/sh", "-c", KEEPER, "hyperruntime-apptainer", places.files, places.record),
        *unshare_args(spec, settings, places),
        *device_args(gpus, places),
        *exec_args(launch, settings, places),
        *gpu_args(gpus, places),
        places.image,
        *prelude_args(spec, places, process_limit(spec.limits, settings), gpus),
    ]


def refuse(spec: ContainerSpec, settings: Settings) -> None:
    """Refuse what Apptainer cannot do for an ordinary user.

    Raises:
        UnsupportedOptionError: a field cannot be honoured on this machine.
    """
    if spec.user is not None and spec.user not in ROOT_USERS:
        raise UnsupportedOptionError(NAME, "user", only_root_user())
    if spec.network == "bridge":
        why = "an ordinary user cannot make a private network with a way out; use network='none' or 'host'"
        raise UnsupportedOptionError(NAME, "network", why)
    for field, value in (
        ("memory_bytes", spec.limits.memory_bytes),
        ("cpus", spec.limits.cpus),
        ("pids", spec.limits.pids),
    ):
        if value is not None and settings.limits.get(field, "no") == "no":
            why = "no cgroup can be made for it here (that takes cgroup v2, delegated to this user by systemd)"
            raise UnsupportedOptionError(NAME, f"limits.{field}", f"{why}; leave it at None")
    if spec.limits.pids is not None and spec.limits.pids < MIN_PIDS:
        why = f"Apptainer itself takes about 15 of them; ask for at least {MIN_PIDS}"
        raise UnsupportedOptionError(NAME, "limits.pids", why)


def only_root_user() -> str:
    """Return why no other user can be had."""
    return (
        "a container has one user, who is root inside and this user outside (others would need subordinate ids); "
        "leave user at None"
    )


def unshare_args(spec: ContainerSpec, settings: Settings, places: Places) -> list[str]:
    """Return what makes this user root of namespaces of its own, and mounts there what only root may mount.

    The process namespace around Apptainer's own makes one kill of ``unshare`` end all of it, helpers too.
    """
    args = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    private_sys = has_private_sys(spec, settings)
    if private_sys:
        args.append("--net")  # /sys may be mounted only by whoever owns the network that it shows
    options = tmpfs_options(spec)
    if not private_sys and not options:
        return args
    prepare = ["/bin/sh", "-ec", PREPARE, "prepare", places.sys if private_sys else ""]
    return [*args, *prepare, places.tmp if options else "", options]


def has_private_sys(spec: ContainerSpec, settings: Settings) -> bool:
    """Tell whether the container gets a ``/sys`` of its own."""
    return settings.sysfs and spec.network == "none"


def tmpfs_options(spec: ContainerSpec) -> str:
    """Return the mount options of a ``/tmp`` in memory, or "" where it is part of the root."""
    if spec.limits.tmpfs_bytes is not None:
        return f"mode=1777,nosuid,nodev,size={spec.limits.tmpfs_bytes}"
    taken = any(posixpath.normpath(mount.target) == "/tmp" for mount in spec.mounts)  # noqa: S108 - in the container
    return "mode=1777,nosuid,nodev" if spec.read_only_rootfs and not taken else ""


def process_limit(limits: Limits, settings: Settings) -> str:
    """Return the limit on processes that the prelude sets, or ""; the kernel counts in this user namespace alone."""
    if limits.pids is None or settings.limits.get("pids") != "rlimit":
        return ""
    return str(stricter(limits.pids, settings.nproc))


def exec_args(launch: Launch, settings: Settings, places: Places) -> list[str]:
    """Return ``apptainer exec`` with all but the image and the command."""
    spec = launch.spec
    args = ["apptainer", "--silent", "--config", places.config, "exec", "--containall", "--pid", "--uts"]
    args += ["--hostname", launch.name[:63], "--no-home", "--no-eval", "--no-umask", "--cwd", "/", "--no-privs"]
    args += ["--add-caps", ",".join(f"CAP_{name}" for name in CAPABILITIES)]
    if spec.network == "none":
        args += ["--net", "--network", "none"]
    if spec.limits.memory_bytes is not None:
        args += ["--memory", str(spec.limits.memory_bytes), "--memory-swap", str(spec.limits.memory_bytes)]
    if spec.limits.cpus is not None:
        args += ["--cpus", str(spec.limits.cpus)]
    if not spec.read_only_rootfs:
        args += ["--overlay", places.layer]
    for mount in (*sys_mounts(spec, settings, places), launch.exchange, *spec.mounts):
        args += ["--mount", mount_option(mount)]
    if tmpfs_options(spec):
        args += ["--mount", mount_option(Mount(source=places.tmp, target="/tmp", read_only=False))]  # noqa: S108
    return args


def device_args(gpus: Gpus, places: Places) -> list[str]:
    """Return what mounts a ``/dev`` with device files that are called otherwise outside.

    Apptainer puts a device file only where it is on the host (bind mounts from ``/dev`` to another place are taken for
    that), so the container's is what Apptainer takes for the host's.
    """
    nodes = [node for node in gpus.nodes if node.path.startswith("/dev/")]
    if all(node.path == node.host_path for node in nodes):
        return []
    pairs = [word for node in nodes for word in (node.host_path, node.path)]
    return ["/bin/sh", "-ec", DEVICES, "devices", places.devices, *pairs, "--"]


def gpu_args(gpus: Gpus, places: Places) -> list[str]:
    """Return what gives GPUs to a container, as ``apptainer exec`` is told it."""
    mounts = [*(Mount(source=node.path, target=node.path, read_only=False) for node in gpus.nodes), *gpus.mounts]
    if gpus.libraries:
        mounts.append(Mount(source=places.libraries, target=LIBRARIES))
    return [*(["--nv"] if gpus.nv else []), *(word for mount in mounts for word in ("--mount", mount_option(mount)))]


def sys_mounts(spec: ContainerSpec, settings: Settings, places: Places) -> list[Mount]:
    """Return what of ``/sys`` is seen: its own, or with the host's network the host's, but never its cgroups."""
    if has_private_sys(spec, settings):
        return [Mount(source=places.sys, target="/sys")]
    if spec.network == "host":
        return [Mount(source=f"/sys/{name}", target=f"/sys/{name}") for name in HOST_SYS]
    return []


def prelude_args(spec: ContainerSpec, places: Places, processes: str, gpus: Gpus = NO_GPUS) -> list[str]:
    """Return the command that limits processes, enters the working directory, finds libraries and becomes the shell.

    The limit is set here and not around Apptainer, which must make threads though the container has no process left:
    without one it aborts, and the container with it.
    """
    libraries = ":".join(filter(None, (LIBRARIES if gpus.libraries else "", gpus.library_path)))
    asked = spec.env.get("LD_LIBRARY_PATH", "")
    return [
        "/bin/sh",
        "-c",
        PRELUDE,
        "sh",
        processes,
        spec.workdir or places.workdir,
        libraries,
        gpus.driver_major,
        asked,
    ]


def mount_option(mount: Mount) -> str:
    """Return a ``--mount`` value; Apptainer reads it as one line of CSV, so nearly any path can be quoted.

    Raises:
        UnsupportedOptionError: its reader would change the path.
    """
    if "\r\n" in mount.source + mount.target:
        raise UnsupportedOptionError(NAME, "mounts", "it takes no path with carriage return and newline; rename it")
    fields = ["type=bind", f"src={mount.source}", f"dst={mount.target}"]
    return csv_line([*fields, "ro"] if mount.read_only else fields)


def csv_line(fields: Sequence[str]) -> str:
    """Return fields as one line of CSV."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)  # what is in the terminator is quoted in a field
    return line.getvalue().removesuffix("\n")


def config_text(spec: ContainerSpec) -> str:
    """Return an ``apptainer.conf`` for one container: what a site binds into every container stays out of it."""
    return CONFIG.format(resolv_conf="no" if spec.network == "none" else "yes")


def environment(host: Mapping[str, str]) -> dict[str, str]:
    """Return what of the host's environment Apptainer itself needs; nothing of it is seen inside."""
    kept = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "XDG_RUNTIME_DIR")
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **{name: host[name] for name in kept if name in host}}
