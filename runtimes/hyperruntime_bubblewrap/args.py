"""Turn a spec into ``bwrap`` arguments; this reads host directories and the process limit. Source:
bwrap(1) of 0.8.
"""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePosixPath

from hyperruntime.driver import Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.engine_program import ALL_IDS, CAPABILITIES, ONLY_ROOT_USER
from hyperruntime.host.inherited import nproc_option
from hyperruntime.spec import ContainerSpec

NAME = "bubblewrap"
IMAGE = "host"
MARK = "hyperruntime-bubblewrap"
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
# bwrap dies with the *thread* that started it, so a shell starts it. The shell's arguments are the
# container's record.
KEEPER = 'filter=$3 etc=$4; shift 4; "$@" 7<"$etc/passwd" 8<"$etc/group" 9<"$filter"; exit $?'
# Root needs capabilities only where it has other users to manage; the commands inherit no more than
# these.
ROOT = (
    "--bounding-set=-all" + "".join(f",+{name.lower()}" for name in CAPABILITIES),
    "--inh-caps=-all",
)
WITH_USERS = ("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup")


def run_args(
    launch: Launch, filter_path: str = "", *, users: bool = False, created: float
) -> list[str]:
    """Return the argv that starts a container with a shell attached; its record has the time
    ``created``, in seconds.

    Args:
        launch: the container to start.
        filter_path: file of the seccomp filter, or "" for none.
        users: whether this user's subordinate ids are users of the container.
    """
    spec = launch.spec
    limits = launch.spec.limits
    args = ["bwrap", "--die-with-parent", "--new-session", "--clearenv", "--hostname", launch.name]
    args += ["--chdir", spec.workdir or "/", "--setenv", "PATH", PATH, "--cap-drop", "ALL"]
    if users:
        args = [
            "unshare",
            *ALL_IDS,
            *args,
            *WITH_USERS,
            *["--unshare-net"] * (spec.network != "host"),
        ]
        args += [word for name in CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    else:
        args += [
            "--unshare-all",
            "--uid",
            "0",
            "--gid",
            "0",
            *["--share-net"] * (spec.network == "host"),
        ]
    args += ["--seccomp", "9"] if filter_path else []
    args += [
        "--ro-bind",
        "/usr",
        "/usr",
        *(word for n in LINKS for word in ("--symlink", f"usr/{n}", f"/{n}")),
    ]
    args += [
        w
        for p in HIDDEN
        if os.path.isdir(p) and not os.path.islink(p)
        for w in ("--tmpfs", p, "--remount-ro", p)
    ]
    args += ["--proc", "/proc", "--dev", "/dev", "--chmod", "1777", SHM, *dirs(*DIRECTORIES)]
    args += (
        []
        if limits.shm_bytes is None
        else ["--perms", "1777", "--size", str(limits.shm_bytes), "--tmpfs", SHM]
    )
    args += ["--perms", "1777", "--dir", "/run/lock", "--perms", "1777"]
    args += [] if limits.tmpfs_bytes is None else ["--size", str(limits.tmpfs_bytes)]
    args += ["--tmpfs", "/tmp", "--perms", "1777", "--dir", "/var/tmp", "--setenv", "HOME", "/root"]  # noqa: S108
    # copies, to which root in the container adds users
    args += [*USERS, "--ro-bind", f"{OWN_ETC}/hosts", "/etc/hosts"]
    for name in (*HOSTS_ETC, "resolv.conf", "hosts") if spec.network == "host" else HOSTS_ETC:
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for mount in (launch.exchange, *spec.mounts):
        args += dirs(*map(str, [*PurePosixPath(mount.target).parents][-2::-1]))
        args += ["--ro-bind" if mount.read_only else "--bind", mount.source, mount.target]
    args += ["--remount-ro", "/"] * spec.read_only_rootfs
    args += [] if limits.pids is None else ["/usr/bin/prlimit", nproc_option(limits.pids)]
    args += ["/usr/bin/setpriv", *ROOT, "--ambient-caps=-all"] if users else []
    record = json.dumps({"image": spec.image, "labels": dict(launch.labels), "created": created})
    return [
        "/bin/sh",
        "-c",
        KEEPER,
        MARK,
        launch.name,
        record,
        filter_path or os.devnull,
        OWN_ETC,
        *args,
        "/bin/sh",
    ]


def dirs(*paths: str) -> list[str]:
    """Return the options that make directories where they are missing; those that bwrap makes
    itself have mode 0700.
    """
    return [word for path in paths for word in ("--dir", path)]


def refuse(spec: ContainerSpec, pids: str) -> None:
    """Raise if bubblewrap cannot honour a spec; ``pids`` is how this machine enforces a process
    limit.

    Raises:
        UnsupportedOptionError: a field cannot be honoured.
    """
    for field, wanted, why in (
        ("user", spec.user not in (None, "root", "0", "0:0"), ONLY_ROOT_USER),
        (
            "network",
            spec.network == "bridge",
            "bwrap cannot make a bridge network; use 'none' or 'host'",
        ),
        ("gpus", spec.gpus is not None, "it cannot give GPUs to containers; use another engine"),
        (
            "limits.memory_bytes",
            spec.limits.memory_bytes is not None,
            "it makes no cgroups; leave it at None",
        ),
        ("limits.cpus", spec.limits.cpus is not None, "it makes no cgroups; leave it at None"),
        (
            "limits.pids",
            spec.limits.pids is not None and pids == "no",
            "the limit has no effect here; set it to None",
        ),
    ):
        if wanted:
            raise UnsupportedOptionError(NAME, field, why)
