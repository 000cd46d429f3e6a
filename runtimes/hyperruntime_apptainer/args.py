"""Turn a spec into the job that starts a container. Sources: apptainer-exec(1) of 1.4, unshare(1).

The holder starts it as root of a user namespace, over the mounted files of the container. Its argv
nests these programs, from the outside in: ``unshare`` (creates the other namespaces), a shell that
makes the mounts that need this root, ``apptainer exec``, and a *prelude* that becomes the attached
shell.

Where there are no user namespaces and Apptainer is a setuid program (``Settings.setuid``), a shell
that only waits stands for the first two: its name leads from the record to the processes. The
site's configuration counts then, and the root of the container is a copy of the image.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs

from hyperruntime.driver import Enforcement, Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.gpu.cdi import DeviceNode
from hyperruntime.host.engine_program import (
    CAPABILITIES,
    HOSTS,
    NO_IDS,
    asked_limits,
    csv_line,
    has_own_hosts,
    mount_option,
    needs_own_tmp,
)
from hyperruntime.host.inherited import stricter
from hyperruntime.host.process import find_program
from hyperruntime.layers.namespace import Job, Layers
from hyperruntime.layers.records import Records
from hyperruntime.run_as import is_root
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_apptainer.program import program
from hyperruntime_apptainer.texts import CONFIG, DEVICES, DROP_CAPS, PRELUDE, PREPARE, WAIT

NAME = "apptainer"
RECORDS = Records(NAME)
MIN_PIDS = 40
LIBRARIES = "/opt/hyperruntime-gpu"
NV = "--nv"
ROCM = "--rocm"
FLAG_LIBRARIES = "/.singularity.d/libs"
# What these flags show besides libraries, if the machine has it. Sources: Apptainer's
# nvliblist.conf and rocmliblist.conf.
FLAG_PROGRAMS = {
    NV: (
        "nvidia-smi",
        "nvidia-debugdump",
        "nvidia-persistenced",
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
    ),
    ROCM: ("rocm-smi", "rocminfo"),
}
NV_SOCKET = "/var/run/nvidia-persistenced/socket"
# What a site's configuration mounts, where it counts: it may bring files of the host.
SITE_MOUNTS = "home,tmp,hostfs,cwd"
SITE_FILES = ("/etc/localtime", "/etc/passwd", "/etc/group")
UNSIZED = ("tmpfs_bytes", "shm_bytes")
HOST_SYS = ("block", "bus", "class", "dev", "devices", "kernel", "module")
_MEMORY = "mode=1777,nosuid,nodev"


@attrs.frozen(kw_only=True)
class Settings:
    """Results of the probe that decide how Apptainer is called on this machine.

    Attributes:
        sysfs: whether a private ``/sys`` can be mounted.
        limits: how each limit is enforced (``cgroup``, ``rlimit`` or ``no``).
        nproc: this user's upper bound for a process limit; 0 means unlimited.
        users: whether this user's subordinate ids are users of the container.
        seccomp: whether this Apptainer sets a seccomp filter.
        overlay: whether this user can mount overlays.
        setuid: whether it runs with rights of its own, without user namespaces of ours: as a
            setuid program, or where only it may make them. The user inside is this user then.
        cdi: whether it applies CDI specs itself.
    """

    sysfs: bool = True
    limits: Mapping[str, Enforcement] = attrs.field(factory=dict)
    nproc: int = 0
    users: bool = False
    seccomp: bool = True
    overlay: bool = False
    setuid: bool = False
    cdi: bool = False


@attrs.frozen(kw_only=True)
class Places:
    """Paths of one container's files on the host.

    Attributes:
        image: the sandbox directory or SIF of the image.
        files: the container's directory on scratch; removed with the container.
        workdir: the image's own working directory.
        own_root: whether the holder mounts the container's files, as an overlay. Apptainer takes
            root of our namespace for the machine's root, and mounts one without ``userxattr``, in
            which no directory of the image can be removed.
        copied: whether the container's files are a copy of the image.
    """

    image: str
    files: str
    workdir: str = "/"
    own_root: bool = False
    copied: bool = False

    @property
    def root(self) -> str:
        """The directory of the container's files that Apptainer starts; or a SIF."""
        own = f"{self.files}/root" if self.copied else f"{self.files}/upper"
        return own if self.own_root or self.copied else self.image

    @property
    def config(self) -> str:
        """Apptainer's configuration file for this container."""
        return f"{self.files}/apptainer.conf"

    @property
    def filter(self) -> str:
        """The profile of its seccomp filter."""
        return f"{self.files}/seccomp.json"

    @property
    def sys(self) -> str:
        """The mount point of its private ``/sys``."""
        return f"{self.files}/sys"

    @property
    def tmp(self) -> str:
        """The mount point of its ``/tmp``, if that is a memory file system."""
        return f"{self.files}/memory"

    @property
    def shm(self) -> str:
        """The mount point of its ``/dev/shm``, if that has a size."""
        return f"{self.files}/shm"

    @property
    def devices(self) -> str:
        """The mount point of its ``/dev``, if this driver builds that."""
        return f"{self.files}/dev"

    @property
    def libraries(self) -> str:
        """The directory of links to its devices' libraries."""
        return f"{self.files}/libraries"


@attrs.frozen(kw_only=True)
class Gpus:
    """Options, binds and variables for the GPUs of a container.

    Attributes:
        flag: ``--nv`` or ``--rocm``: Apptainer then finds all devices and libraries of one maker
            itself.
        names: CDI names of devices that Apptainer itself gives to the container.
        directories: the directories of their specs.
        nodes: device files.
        mounts: mounts of libraries and programs.
        libraries: library names (sonames) for the dynamic linker, each with its path in the
            container.
        library_path: further directories for the dynamic linker, separated by colons.
        driver_major: the host driver's major version. CUDA compatibility libraries of the image for
            a newer driver are preferred; "" means never.
        env: environment variables that every process needs.
    """

    flag: str = ""
    names: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    libraries: Mapping[str, str] = attrs.field(factory=dict)
    library_path: str = ""
    driver_major: str = ""
    env: Mapping[str, str] = attrs.field(factory=dict)


NO_GPUS = Gpus()


def make_job(
    launch: Launch,
    settings: Settings,
    places: Places,
    gpus: Gpus = NO_GPUS,
    layers: Layers | None = None,
) -> Job:
    """Return the job that starts a container with a shell attached.

    Args:
        launch: the container to start.
        settings: the results of the probe.
        places: the paths of its files.
        gpus: the needs of its GPUs.
        layers: the layers to mount at its root.

    Raises:
        UnsupportedOptionError: a field cannot be honoured on this machine.
    """
    spec = launch.spec
    refuse(spec, settings)
    if launch.joins is not None:  # only the owner of the network may mount its /sys
        settings = attrs.evolve(settings, sysfs=False)
    devices = device_args(gpus, places)
    if devices and settings.setuid:
        why = "it needs a device under another name than on the host, which takes a user namespace"
        raise UnsupportedOptionError(NAME, "gpus", why)
    args = [
        *(waiting_args(places) if settings.setuid else unshare_args(spec, settings, places)),
        *devices,
        *exec_args(launch, settings, places),
        *gpu_args(gpus, places),
        places.root,
        *prelude_args(spec, places, settings, gpus),
    ]
    return Job(
        program="/bin/sh" if settings.setuid else find_program("unshare") or "unshare",
        args=tuple(args),
        env=environment(os.environ),
        directory=places.files,
        record=RECORDS.path_of(launch.name),
        layers=layers,
        root=places.root,
        points=points(launch, settings, places, gpus),
        copied=places.copied,
        read_only=spec.read_only_rootfs,
    )


def points(launch: Launch, settings: Settings, places: Places, gpus: Gpus) -> dict[str, int | None]:
    """Return the mount points that a root must have: directories with a mode, or files."""
    found: dict[str, int | None] = dict.fromkeys(("/dev", "/proc", "/sys"), 0o755)
    found |= dict.fromkeys(("/tmp", "/var/tmp"), 0o1777)  # noqa: S108 - in the container
    found |= dict.fromkeys(
        ("/etc/hosts", "/etc/resolv.conf", *(SITE_FILES if settings.setuid else ()))
    )
    for mount in (*all_mounts(launch, settings, places), *gpu_mounts(gpus, places)):
        found.setdefault(mount.target, 0o755 if os.path.isdir(mount.source) else None)
    if gpus.flag:
        found[FLAG_LIBRARIES] = 0o755
        programs = FLAG_PROGRAMS[gpus.flag]
        found |= {f"/usr/bin/{name}": None for name in programs if find_program(name)}
    if gpus.flag == NV:
        found |= {NV_SOCKET: None} if os.path.exists(NV_SOCKET) else {}
    return found


def refuse(spec: ContainerSpec, settings: Settings) -> None:
    """Raise if Apptainer cannot honour a spec as an ordinary user.

    Args:
        spec: the spec to check.
        settings: the results of the probe.

    Raises:
        UnsupportedOptionError: a field cannot be honoured on this machine.
    """
    if settings.setuid:
        _refuse_setuid(spec)
    if spec.user is not None and not is_root(spec.user) and not settings.users:
        raise UnsupportedOptionError(NAME, "user", NO_IDS)
    if spec.network == "bridge":
        why = (
            "an ordinary user cannot make a private network with a way out; use network='none' "
            "or 'host'"
        )
        raise UnsupportedOptionError(NAME, "network", why)
    if spec.limits.cpus is not None:
        raise UnsupportedOptionError(
            NAME, "limits.cpus", "Apptainer's driver cannot limit cores; leave it at None"
        )
    why = (
        "no cgroup can be made for it here; use a machine with cgroup v2, delegated to this user by "
        "systemd"
    )
    asked_limits(NAME, spec.limits, settings.limits, why)
    if spec.limits.pids is not None and spec.limits.pids < MIN_PIDS:
        why = f"Apptainer itself takes about 15 of them; ask for at least {MIN_PIDS}"
        raise UnsupportedOptionError(NAME, "limits.pids", why)


def _refuse_setuid(spec: ContainerSpec) -> None:
    if spec.user is not None:
        why = (
            "Apptainer's setuid program gives a container one user, which is you; leave it at None"
        )
        raise UnsupportedOptionError(NAME, "user", why)
    for field in UNSIZED:
        if getattr(spec.limits, field) is not None:
            why = "Apptainer's setuid program mounts no memory file system of a size; leave it at None"
            raise UnsupportedOptionError(NAME, f"limits.{field}", why)


def waiting_args(places: Places) -> list[str]:
    """Return a shell that waits for the program after it, and has the container's directory among
    its arguments. ``starter-suid`` hides its own arguments.
    """
    return ["/bin/sh", "-c", WAIT, places.files]


def unshare_args(spec: ContainerSpec, settings: Settings, places: Places) -> list[str]:
    """Return the ``unshare`` command that makes namespaces, and a shell for the work of root in
    them.

    The shell makes mounts and forbids more user namespaces, which no filter of system calls can
    express. The outer pid namespace lets one kill of ``unshare`` end all processes, including
    Apptainer's helpers.
    """
    args = ["unshare", "--mount", "--pid", "--fork"]
    args += ["--kill-child=KILL", "--mount-proc"]
    private_sys = has_private_sys(spec, settings)
    if private_sys:
        args.append("--net")  # only the owner of a network namespace may mount its /sys
    prepare = ["/bin/sh", "-ec", PREPARE, "prepare", places.sys if private_sys else ""]
    memory = [
        word for place, _, options in memory_mounts(spec, places) for word in (place, options)
    ]
    return [*args, *prepare, *memory, "--"]


def has_private_sys(spec: ContainerSpec, settings: Settings) -> bool:
    """Return whether the container gets a private ``/sys``."""
    return settings.sysfs and spec.network == "none"


def memory_mounts(spec: ContainerSpec, places: Places) -> list[tuple[str, str, str]]:
    """Return the container's memory file systems: where each is made, its path in the container,
    its mount options.
    """
    limits = spec.limits
    mounts: list[tuple[str, str, str]] = []
    if limits.tmpfs_bytes is not None or needs_own_tmp(spec):
        mounts.append((places.tmp, "/tmp", _memory(limits.tmpfs_bytes)))  # noqa: S108 - in the container
    if limits.shm_bytes is not None:
        mounts.append((places.shm, "/dev/shm", _memory(limits.shm_bytes)))  # noqa: S108
    return mounts


def _memory(size_bytes: int | None) -> str:
    return _MEMORY if size_bytes is None else f"{_MEMORY},size={size_bytes}"


def process_limit(limits: Limits, settings: Settings) -> str:
    """Return the process limit that the prelude sets, or ""; the kernel counts in this user
    namespace only.
    """
    if limits.pids is None or settings.limits.get("pids") != "rlimit":
        return ""
    return str(stricter(limits.pids, settings.nproc))


def exec_args(launch: Launch, settings: Settings, places: Places) -> list[str]:
    """Return ``apptainer exec`` with its options, without GPUs, the image and the command."""
    spec = launch.spec
    own_config = [] if settings.setuid else ["--config", places.config]
    args = [
        program(),
        "--silent",
        *own_config,
        "exec",
        "--containall",
        "--pid",
        "--uts",
    ]
    args += [
        "--hostname",
        launch.name[:63],
        "--no-home",
        "--no-eval",
        "--no-umask",
        "--cwd",
        "/",
        "--no-privs",
    ]
    if settings.setuid:
        args += ["--no-mount", SITE_MOUNTS]
    if settings.users:
        args += ["--add-caps", ",".join(f"CAP_{name}" for name in CAPABILITIES)]
    if settings.seccomp:
        args += ["--security", csv_line([f"seccomp:{places.filter}"])]
    if spec.network == "none" and launch.joins is None:
        args += ["--net", "--network", "none"]
    if spec.limits.memory_bytes is not None:
        args += [
            "--memory",
            str(spec.limits.memory_bytes),
            "--memory-swap",
            str(spec.limits.memory_bytes),
        ]
    if places.own_root or places.copied:
        args += ["--writable"]
    elif not spec.read_only_rootfs:
        args += ["--overlay", places.files]  # it makes "upper" and "work" there
    for mount in all_mounts(launch, settings, places):
        args += ["--mount", mount_option(NAME, mount)]
    return args


def all_mounts(launch: Launch, settings: Settings, places: Places) -> list[Mount]:
    """Return the mounts of a container, without those of GPUs."""
    spec = launch.spec
    memory = [
        Mount(source=at, target=to, read_only=False) for at, to, _ in memory_mounts(spec, places)
    ]
    return [*sys_mounts(spec, settings, places), launch.exchange, *memory, *spec.mounts]


def device_args(gpus: Gpus, places: Places) -> list[str]:
    """Return the command that mounts a ``/dev`` in which device files have other names than on the
    host.

    Empty if all names are equal. Apptainer binds a device file only to its path on the host, also
    for bind mounts from ``/dev`` to another path. Therefore ``/dev`` is replaced before Apptainer
    starts.
    """
    nodes = [node for node in gpus.nodes if node.path.startswith("/dev/")]
    if all(node.path == node.host_path for node in nodes):
        return []
    pairs = [word for node in nodes for word in (node.host_path, node.path)]
    return ["/bin/sh", "-ec", DEVICES, "devices", places.devices, *pairs, "--"]


def gpu_args(gpus: Gpus, places: Places) -> list[str]:
    """Return the options of ``apptainer exec`` that give GPUs to a container."""
    if gpus.names:
        return ["--device", ",".join(gpus.names), "--cdi-dirs", ",".join(gpus.directories)]
    nodes = [Mount(source=node.path, target=node.path, read_only=False) for node in gpus.nodes]
    mounts = [*nodes, *gpu_mounts(gpus, places)]
    options = [word for mount in mounts for word in ("--mount", mount_option(NAME, mount))]
    return [gpus.flag, *options] if gpus.flag else options


def gpu_mounts(gpus: Gpus, places: Places) -> list[Mount]:
    """Return the mounts of the libraries and programs of GPUs."""
    links = [Mount(source=places.libraries, target=LIBRARIES)] if gpus.libraries else []
    return [*gpus.mounts, *links]


def sys_mounts(spec: ContainerSpec, settings: Settings, places: Places) -> list[Mount]:
    """Return the mounts of ``/sys``: a private one, or the host's (without cgroups) with the host's
    network.
    """
    if has_private_sys(spec, settings):
        return [Mount(source=places.sys, target="/sys")]
    if spec.network == "host" and not settings.setuid:
        return [Mount(source=f"/sys/{name}", target=f"/sys/{name}") for name in HOST_SYS]
    return []


def prelude_args(
    spec: ContainerSpec, places: Places, settings: Settings, gpus: Gpus = NO_GPUS
) -> list[str]:
    """Return the command that limits processes, enters the working directory, sets library paths
    and becomes the shell.

    The capabilities that Apptainer gives to root are ambient: they would stay with programs, so the
    shell drops them if the image has ``setpriv``. Root keeps its capabilities without that.

    The limit is set here and not around Apptainer: Apptainer aborts if it cannot make a thread, and
    the container would end with it.

    Args:
        spec: the container's spec.
        places: the paths of its files.
        settings: the results of the probe.
        gpus: the needs of its GPUs.
    """
    libraries = ":".join(filter(None, (LIBRARIES if gpus.libraries else "", gpus.library_path)))
    asked = spec.env.get("LD_LIBRARY_PATH", "")
    workdir = spec.workdir or places.workdir
    own = "own" if workdir == places.workdir else ""
    processes = process_limit(spec.limits, settings)
    drops = DROP_CAPS if settings.users else ""
    words = (processes, workdir, libraries, gpus.driver_major, asked, own, drops)
    return ["/bin/sh", "-c", PRELUDE, "sh", *words]


def config_text(spec: ContainerSpec, programs: str = "") -> str:
    """Return the ``apptainer.conf`` of one container; it leaves out the site's own binds.

    Args:
        spec: the container's spec.
        programs: where Apptainer searches for helpers; "" means all usual places. It starts one for
            SIF files three times at each start.
    """
    own = f"binary path = {programs}\n" if programs else ""
    hosts = "" if has_own_hosts(spec) else f"bind path = {HOSTS}"
    return CONFIG.format(resolv_conf="no" if spec.network == "none" else "yes", hosts=hosts) + own


def environment(host: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the host's environment that Apptainer itself needs; the container does not
    see it.
    """
    kept = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "XDG_RUNTIME_DIR")
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        **{name: host[name] for name in kept if name in host},
    }
