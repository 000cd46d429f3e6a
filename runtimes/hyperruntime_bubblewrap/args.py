"""Turn a spec into ``bwrap`` arguments; this reads host directories and the process limit. Source: bwrap(1) of 0.8."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hyperruntime.driver import Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.engine_program import CAPABILITIES
from hyperruntime.host.inherited import nproc_option
from hyperruntime.spec import ContainerSpec

NAME, IMAGE, MARK = "bubblewrap", "host", "hyperruntime-bubblewrap"
# The container sees only these host files: /usr without its settings (they may hold keys), and parts of /etc.
LINKS = ("bin", "sbin", "lib", "lib32", "lib64")
ETC = ("alternatives", "ca-certificates", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types")
HOSTS_ETC = (*ETC, "os-release", "protocols", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo")
HIDDEN, OWN_ETC = ("/usr/local/etc", "/usr/etc"), Path(__file__).parent / "etc"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# bwrap dies with the *thread* that started it, so a shell starts it. The shell's arguments are the container's record.
KEEPER = 'shift 2; "$@"; exit $?'


def run_args(launch: Launch) -> list[str]:
    """Return the argv that starts a container with a shell attached."""
    spec, limits = launch.spec, launch.spec.limits
    args = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--uid", "0", "--gid", "0", "--clearenv"]
    args += ["--hostname", launch.name, "--chdir", spec.workdir or "/", "--cap-drop", "ALL", "--setenv", "PATH", PATH]
    args += [word for name in CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    args += ["--ro-bind", "/usr", "/usr", *(word for n in LINKS for word in ("--symlink", f"usr/{n}", f"/{n}"))]
    args += [w for p in HIDDEN if os.path.isdir(p) and not os.path.islink(p) for w in ("--tmpfs", p, "--remount-ro", p)]
    args += ["--proc", "/proc", "--dev", "/dev", "--dir", "/root", "--dir", "/run", "--perms", "1777"]
    args += [] if limits.tmpfs_bytes is None else ["--size", str(limits.tmpfs_bytes)]
    args += ["--tmpfs", "/tmp", "--perms", "1777", "--dir", "/var/tmp", "--setenv", "HOME", "/root"]  # noqa: S108
    for name in ("passwd", "group", "hosts"):
        args += ["--ro-bind", str(OWN_ETC / name), f"/etc/{name}"]
    for name in (*HOSTS_ETC, "resolv.conf", "hosts") if spec.network == "host" else HOSTS_ETC:
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for mount in (launch.exchange, *spec.mounts):
        args += ["--ro-bind" if mount.read_only else "--bind", mount.source, mount.target]
    args += ["--share-net"] * (spec.network == "host") + ["--remount-ro", "/"] * spec.read_only_rootfs
    args += [] if limits.pids is None else ["/usr/bin/prlimit", nproc_option(limits.pids)]
    record = json.dumps({"image": spec.image, "labels": dict(launch.labels)})
    return ["/bin/sh", "-c", KEEPER, MARK, launch.name, record, *args, "/bin/sh"]


def refuse(spec: ContainerSpec, pids: str) -> None:
    """Raise if bubblewrap cannot honour a spec; ``pids`` is how this machine enforces a process limit.

    Raises:
        UnsupportedOptionError: a field cannot be honoured.
    """
    for field, wanted, why in (
        ("user", spec.user not in (None, "root", "0", "0:0"), "the only user is root inside, which is you outside"),
        ("network", spec.network == "bridge", "bwrap cannot make a bridge network; use 'none' or 'host'"),
        ("gpus", spec.gpus is not None, "it cannot give GPUs to containers; use another engine"),
        ("limits.memory_bytes", spec.limits.memory_bytes is not None, "it makes no cgroups; leave it at None"),
        ("limits.cpus", spec.limits.cpus is not None, "it makes no cgroups; leave it at None"),
        ("limits.pids", spec.limits.pids is not None and pids == "no", "the limit has no effect here; set it to None"),
    ):
        if wanted:
            raise UnsupportedOptionError(NAME, field, why)
