"""Turn a spec into ``bwrap`` arguments; this reads host directories. Source: bwrap(1) of 0.8."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from hyperruntime.driver import Launch
from hyperruntime.errors import ImageError, UnsupportedOptionError
from hyperruntime.host.engine_program import CAPABILITIES, HOSTS, has_own_hosts, needs_own_tmp
from hyperruntime.host.inherited import process_ceiling, stricter
from hyperruntime.host.process import find_program
from hyperruntime.layers.holder import inside
from hyperruntime.layers.images import ImageSource
from hyperruntime.layers.namespace import Job, Layers
from hyperruntime.layers.records import Records
from hyperruntime.layers.snapshots.merging import is_of_fuse
from hyperruntime.spec import ContainerSpec

NAME = "bubblewrap"
IMAGE = "host"
RECORDS = Records(NAME)
ENV = {"PATH": os.defpath}
# The container sees only these host files: /usr without its settings (they may hold keys), and
# parts of /etc.
LINKS = ("bin", "sbin", "lib", "lib32", "lib64")
ETC = (
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
)
HOSTS_ETC = (
    *ETC,
    "os-release",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
)
HIDDEN = ("/usr/local/etc", "/usr/etc")
OWN_ETC = str(Path(__file__).parent / "etc")
USERS = (
    "--perms",
    "0644",
    "--file",
    "7",
    "/etc/passwd",
    "--perms",
    "0644",
    "--file",
    "8",
    "/etc/group",
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHM = "/dev/shm"  # noqa: S108 - in the container
DIRECTORIES = ("/etc", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/var")
SETPRIV = "/usr/bin/setpriv"
NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup")


class InContainer(str):
    """A path in the container; a starter of the holder resolves its links inside the image.

    bwrap itself would follow them out of the image while it makes the mounts.
    """

    __slots__ = ()


def make_job(
    launch: Launch,
    source: ImageSource | None,
    files: str,
    *,
    filter_path: str,
    layers: Layers | None,
    users: bool,
) -> Job:
    """Return the job that starts a container.

    Args:
        launch: the container to start.
        source: the image's files; None means this machine's programs.
        files: the container's directory.
        filter_path: file of the seccomp filter, or "" for none.
        layers: the layers to mount at its root.
        users: whether this user's subordinate ids are users of the container.
    """
    root = layers.at if layers else f"{files}/root"
    args = sandbox_args(launch, root, source, users=users, filtered=bool(filter_path))
    pids = launch.spec.limits.pids
    opened = [(filter_path, 9)] if filter_path else []
    if source is None:
        opened += [(f"{OWN_ETC}/passwd", 7), (f"{OWN_ETC}/group", 8)]
    return Job(
        program=find_program("bwrap") or "bwrap",
        args=(f"{files}/bwrap", *args),  # its name leads from the record to the processes
        env=ENV,
        directory=files,
        record=RECORDS.path_of(launch.name),
        layers=layers,
        root=root,
        inside=tuple(
            place
            for place, word in enumerate(args, 1)
            if isinstance(word, InContainer) and source is not None
        ),
        open=tuple(opened),
        limits={} if pids is None else {"RLIMIT_NPROC": stricter(pids, process_ceiling())},
    )


def sandbox_args(
    launch: Launch, root: str, image: ImageSource | None, *, users: bool, filtered: bool
) -> list[str]:
    """Return the arguments of ``bwrap``, without its name, for a container with a shell.

    It runs as root of a user namespace. Descriptor 9 is the seccomp filter, 7 and 8 are the users
    and groups of the host's programs.

    Args:
        launch: the container to start.
        root: directory of the image's files, which may be changed.
        image: the image's configuration; None means this machine's programs.
        users: whether this user's subordinate ids are users of the container.
        filtered: whether there is a seccomp filter.
    """
    spec = launch.spec
    network = [] if spec.network == "host" or launch.joins else ["--unshare-net"]
    args = ["--die-with-parent", "--new-session", "--clearenv", "--hostname", launch.name[:63]]
    args += [*NAMESPACES, *network, "--cap-drop", "ALL"]
    # Root needs capabilities only where it has other users to manage; its commands inherit no more
    # than these. bwrap makes them ambient, so `setpriv` ends that, where an image has it; for the
    # bounding set it needs one. Without it nobody gains more: bwrap sets PR_SET_NO_NEW_PRIVS.
    trees = ("/",) if image is None else (*launch.layers, image.files)
    has_setpriv = _has_program(trees, SETPRIV)
    kept = CAPABILITIES if users else ()
    for name in kept or ("SETPCAP",) * has_setpriv:
        args += ["--cap-add", f"CAP_{name}"]
    args += ["--seccomp", "9"] if filtered else []
    args += _host_args(spec) if image is None else _image_args(spec, root, image)
    _check_nested(spec)
    for mount in (launch.exchange, *spec.mounts):
        args += dirs(*map(str, [*PurePosixPath(mount.target).parents][-2::-1]))
        bind = "--ro-bind" if mount.read_only else "--bind"
        args += [bind, mount.source, InContainer(mount.target)]
    args += ["--remount-ro", "/"] * spec.read_only_rootfs
    if has_setpriv:
        bounding = "".join(f",+{name.lower()}" for name in kept)
        args += [
            SETPRIV,
            f"--bounding-set=-all{bounding}",
            "--inh-caps=-all",
            "--ambient-caps=-all",
        ]
    return [*args, "/bin/sh"]


def _has_program(trees: Sequence[str], path: str) -> bool:
    """Return whether the highest layer that has a path, or has removed it, has a file there and no
    link, as those of busybox are.
    """
    steps = [*PurePosixPath(path).parents][-2::-1]
    for tree in trees:
        marks = [f"{step.parent}/.wh.{step.name}" for step in (*steps, PurePosixPath(path))]
        if is_of_fuse(tree) and any(os.path.lexists(tree + mark) for mark in marks):
            return False
        with suppress(OSError):
            if any(stat.S_ISCHR(os.lstat(f"{tree}{step}").st_mode) for step in steps):
                return False
        if os.path.lexists(tree + path):
            return stat.S_ISREG(os.lstat(tree + path).st_mode)
    return False


def _check_nested(spec: ContainerSpec) -> None:
    """Check that no link in a mount leads another mount out of it: a container may have made it.

    Raises:
        UnsupportedOptionError: one does.
    """
    for number, mount in enumerate(spec.mounts):
        for outer in spec.mounts[:number]:
            rest = posixpath.relpath(mount.target, outer.target)
            if rest.startswith("..") or rest == ".":
                continue
            if inside(outer.source, rest) != f"/{rest}":
                why = f"the path of {mount.target!r} in {outer.source!r} is a link; remove the link"
                raise UnsupportedOptionError(NAME, "mounts", why)


def _host_args(spec: ContainerSpec) -> list[str]:
    """Return the options for the files of this machine's programs, in memory."""
    args = ["--ro-bind", "/usr", "/usr"]
    args += [word for name in LINKS for word in ("--symlink", f"usr/{name}", f"/{name}")]
    for path in HIDDEN:
        if os.path.isdir(path) and not os.path.islink(path):
            args += ["--tmpfs", path, "--remount-ro", path]
    args += [*_own_args(spec), *dirs(*DIRECTORIES), "--perms", "1777", "--dir", "/run/lock"]
    if spec.limits.tmpfs_bytes is None:
        args += ["--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108 - in the container
    args += ["--perms", "1777", "--dir", "/var/tmp"]  # noqa: S108
    # copies, to which root in the container adds users
    args += [*USERS, *_hosts_args(spec)]
    for name in (*HOSTS_ETC, "resolv.conf") if spec.network == "host" else HOSTS_ETC:
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    args += ["--chdir", spec.workdir or "/", "--setenv", "PATH", PATH, "--setenv", "HOME", "/root"]
    return args


def _image_args(spec: ContainerSpec, root: str, image: ImageSource) -> list[str]:
    """Return the options for the files of an image."""
    args = ["--bind", root, "/", *_own_args(spec)]
    if needs_own_tmp(spec) and spec.limits.tmpfs_bytes is None:
        args += ["--perms", "1777", "--tmpfs", InContainer("/tmp")]  # noqa: S108
    args += [*dirs("/etc"), *_hosts_args(spec)]
    if spec.network == "host":
        args += ["--ro-bind-try", "/etc/resolv.conf", InContainer("/etc/resolv.conf")]
    home = posixpath.normpath(f"/{image.workdir.lstrip('/')}")
    if f"{home}/".startswith(("/proc/", "/dev/")):  # these have links out of the image
        raise ImageError(
            f"the working directory {home!r} of image {spec.image!r} is not a directory of its own"
        )
    if spec.workdir in (None, image.workdir):  # builds of Podman do not make it
        args += ["--dir", InContainer(home)]
    env = {"PATH": PATH, "HOME": "/root", **image.env}
    args += [word for name, value in env.items() for word in ("--setenv", name, value)]
    return [*args, "--chdir", spec.workdir or home]


def _hosts_args(spec: ContainerSpec) -> list[str]:
    """Return the options for ``/etc/hosts``, unless a mount is there."""
    if has_own_hosts(spec):
        return []
    args = ["--ro-bind", f"{OWN_ETC}/hosts", InContainer(HOSTS)]
    return [*args, "--ro-bind-try", HOSTS, InContainer(HOSTS)] if spec.network == "host" else args


def _own_args(spec: ContainerSpec) -> list[str]:
    """Return the options for the file systems that every container has for itself."""
    limits = spec.limits
    args = ["--proc", InContainer("/proc"), "--dev", InContainer("/dev"), "--chmod", "1777"]
    args += [InContainer(SHM)]
    if limits.shm_bytes is not None:
        size = str(limits.shm_bytes)
        args += ["--perms", "1777", "--size", size, "--tmpfs", InContainer(SHM)]
    if limits.tmpfs_bytes is not None:
        size = str(limits.tmpfs_bytes)
        args += ["--perms", "1777", "--size", size, "--tmpfs", InContainer("/tmp")]  # noqa: S108
    return args


def dirs(*paths: str) -> list[str]:
    """Return the options that make directories where they are missing; those that bwrap makes
    itself have mode 0700.
    """
    return [word for path in paths for word in ("--dir", InContainer(path))]
