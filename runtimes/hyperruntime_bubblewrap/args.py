"""Turn a spec into the argv of ``bwrap``: pure, no I/O. Source: bwrap(1) of 0.8."""

from __future__ import annotations

import json
from pathlib import Path

from hyperruntime.driver import Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.spec import ContainerSpec

NAME, IMAGE, MARK = "bubblewrap", "host", "hyperruntime-bubblewrap"
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "SYS_CHROOT")
# What programs need of /etc; all else there, and all of the host but /usr, is simply not mounted.
ETC = ("alternatives", "ca-certificates", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types")
ETC += ("os-release", "protocols", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo")
OWN_ETC = Path(__file__).parent / "etc"
# bwrap ends when its parent's *thread* does (PR_SET_PDEATHSIG), so it needs a parent with one thread. This shell's
# argv is also the record of the container: it is there exactly as long as the container is.
KEEPER = 'shift 2; "$@"; exit $?'


def run_args(launch: Launch, userland: list[str]) -> list[str]:
    """Return the argv that starts a container; ``userland`` is what of the host's root it sees."""
    spec = launch.spec
    args = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    args += ["--uid", "0", "--gid", "0", "--hostname", launch.name, "--chdir", spec.workdir or "/"]
    args += ["--share-net"] if spec.network == "host" else []
    args += [word for name in CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    args += [*userland, "--proc", "/proc", "--dev", "/dev", "--dir", "/root", "--dir", "/run", "--perms", "1777"]
    args += [*_size(spec.limits.tmpfs_bytes), "--tmpfs", "/tmp", "--perms", "1777", "--dir", "/var/tmp"]  # noqa: S108
    args += [word for path in ETC for word in ("--ro-bind-try", f"/etc/{path}", f"/etc/{path}")]
    args += [word for path in ("passwd", "group") for word in ("--ro-bind", str(OWN_ETC / path), f"/etc/{path}")]
    if spec.network == "host":
        args += [
            word for path in ("resolv.conf", "hosts") for word in ("--ro-bind-try", f"/etc/{path}", f"/etc/{path}")
        ]
    else:
        args += ["--ro-bind", str(OWN_ETC / "hosts"), "/etc/hosts"]
    for mount in (launch.exchange, *spec.mounts):
        args += ["--ro-bind" if mount.read_only else "--bind", mount.source, mount.target]
    args += ["--remount-ro", "/"] if spec.read_only_rootfs else []
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **spec.env}
    args += [word for name, value in env.items() for word in ("--setenv", name, value)]
    limit = [] if spec.limits.pids is None else ["prlimit", f"--nproc={spec.limits.pids}:{spec.limits.pids}"]
    record = json.dumps({"image": spec.image, "labels": dict(launch.labels)})
    return ["/bin/sh", "-c", KEEPER, MARK, launch.name, record, *args, *limit, "/bin/sh"]


def refuse(spec: ContainerSpec, pids: str) -> None:
    """Refuse what bubblewrap cannot do; ``pids`` is how a limit on processes is enforced here.

    Raises:
        UnsupportedOptionError: a field cannot be honoured.
    """
    limits = spec.limits
    for field, wanted, why in (
        ("user", spec.user not in (None, "root", "0", "0:0"), "a container has one user, root inside and you outside"),
        ("network", spec.network == "bridge", "it can make no private network with a way out; use 'none' or 'host'"),
        ("gpus", spec.gpus is not None, "it gives no GPU to a container"),
        ("limits.memory_bytes", limits.memory_bytes is not None, "it makes no cgroups; leave it at None"),
        ("limits.cpus", limits.cpus is not None, "it makes no cgroups; leave it at None"),
        ("limits.pids", limits.pids is not None and pids == "no", "it does not hold on this kernel; set it to None"),
    ):
        if wanted:
            raise UnsupportedOptionError(NAME, field, why)


def _size(size_bytes: int | None) -> list[str]:
    return [] if size_bytes is None else ["--size", str(size_bytes)]
