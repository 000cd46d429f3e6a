"""Find the world-writable paths of a container, once for each pool."""

from __future__ import annotations

import os
import posixpath

import attrs

from hyperruntime.container import Container
from hyperruntime.errors import PoolError
from hyperruntime.pool.slots import scripts
from hyperruntime.spec import ContainerSpec

_TIMEOUT_S = 600.0
_LIMIT_BYTES = 64 * 1024**2
_NO_FILES = frozenset(b"proc sysfs cgroup cgroup2 devpts securityfs debugfs tracefs bpf".split())
_NOT_OURS = "/run/hyperruntime"


@attrs.frozen(kw_only=True)
class WritablePaths:
    """The world-writable paths of a container that has just started.

    Attributes:
        uid_map: content of ``/proc/self/uid_map`` in the container.
        directories: world-writable directories whose parent is not world-writable.
        open_directories: world-writable directories in which one user can rename another's files.
        files: world-writable files, FIFOs and sockets.
        race_option: the option with which this ``find`` ignores files that vanish during its
            search, or "".
    """

    uid_map: str
    directories: tuple[bytes, ...]
    open_directories: tuple[bytes, ...]
    files: tuple[bytes, ...]
    race_option: str


def find_writable_paths(container: Container) -> WritablePaths:
    """Search a container's files, without the mounts of its spec; may take seconds in a large
    image.

    Raises:
        PoolError: the container has no suitable ``find``, or its output is too long or too late.
    """
    mountinfo = _run(container, "cat /proc/self/mountinfo")
    roots = writable_roots(mountinfo, container.spec)
    # With -xdev, find(1) does not enter a mount point but prints it, and it takes a device mounted
    # on a file for that file. The find of busybox enters every file system that one of its roots is
    # on.
    targets = {_target(line) for line in mountinfo.splitlines()}
    foreign = targets - set(map(os.fsencode, roots))
    below = tuple(target + b"/" for target in foreign)

    def find(script: str) -> tuple[bytes, ...]:
        names = dict.fromkeys(_run(container, script, *roots).split(b"\0"))
        return tuple(
            name for name in names if name and name not in foreign and not name.startswith(below)
        )

    directories = find(scripts.FIND_WRITABLE)
    return WritablePaths(
        uid_map=_run(container, "cat /proc/self/uid_map").decode(),
        directories=tuple(
            name for name in directories if posixpath.dirname(name) not in set(directories)
        ),
        open_directories=find(scripts.FIND_OPEN),
        files=tuple(name for name in find(scripts.FIND_FILES) if name not in targets),
        race_option=_run(container, scripts.RACE_OPTION).decode().strip(),
    )


def close_writable_paths(container: Container, found: WritablePaths) -> None:
    """Remove write permission for others from the files, and make the open directories sticky.

    Args:
        container: the container to change.
        found: the paths that :func:`find_writable_paths` found.

    Raises:
        PoolError: a mode could not be changed.
    """
    for mode, names in (("o-w", found.files), ("+t", found.open_directories)):
        if names:
            _run(container, scripts.CHMOD, mode, source=b"\0".join(names) + b"\0")


def writable_roots(mountinfo: bytes, spec: ContainerSpec) -> list[str]:
    """Return the writable mount points, without kernel file systems and the spec's mounts; ``/`` if
    there is none.

    Args:
        mountinfo: content of ``/proc/self/mountinfo`` in the container.
        spec: the container's spec.

    Source: proc(5), mountinfo.
    """
    own = {"/" + posixpath.normpath(mount.target).lstrip("/") for mount in spec.mounts}
    roots = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(b" - ")
        options = fields.split(b" ")[5].split(b",")
        target = os.fsdecode(_target(line))
        skipped = (
            target in own
            or f"{target}/".startswith(f"{_NOT_OURS}/")
            or rest.split(b" ")[0] in _NO_FILES
        )
        kernels = f"{target}/".startswith(("/proc/", "/sys/"))
        if not skipped and not kernels and b"ro" not in options:
            roots.append(target)
    return list(dict.fromkeys(roots)) or ["/"]


def _target(line: bytes) -> bytes:
    """Return the mount point of a line, with octal escapes (of blanks and the like) decoded."""
    head, *parts = line.split(b" ")[4].split(b"\\")
    return head + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in parts)


def _run(container: Container, script: str, *args: str, source: bytes | None = None) -> bytes:
    result = container.exec(
        ["/bin/sh", "-c", script, "survey", *args],
        input=source,
        workdir="/",
        timeout_s=_TIMEOUT_S,
        output_limit_bytes=_LIMIT_BYTES,
    )
    if (
        result.exit_code in (126, 127)
        or result.truncated
        or result.timed_out
        or (source and result.exit_code)
    ):
        why = result.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no result"]
        raise PoolError(
            f"{container.name} cannot be prepared for several slots: {why[0]}; use an image "
            "with find, xargs, chmod and rm, or set slots_per_container=1"
        )
    return result.stdout
