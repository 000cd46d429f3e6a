"""Where on this machine a container's files go."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")
VARIABLES = ("APPTAINER_TMPDIR", "TMPDIR", "SCRATCH")
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "afs", "cifs", "smb3", "panfs"})


def scratch_directory() -> str:
    """Return the first usable one of ``APPTAINER_TMPDIR``, ``TMPDIR``, ``SCRATCH``, ``/tmp`` and ``/var/tmp``."""
    return next((path for _, path, why in candidates() if not why), "/tmp")  # noqa: S108


def candidates() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the directory and why it cannot be used ("" where it can) of each that is set."""
    for name in VARIABLES:
        if path := os.environ.get(name):
            yield name, path, why_unusable(path)
    for path in ("/tmp", "/var/tmp"):  # noqa: S108 - a directory of our own is made in it
        yield "default", path, why_unusable(path)


def why_unusable(path: str) -> str:
    """Return why a directory cannot hold what containers write, or ""."""
    if not os.path.isabs(path):
        return "not an absolute path"
    if not _PLAIN_PATH.fullmatch(path):
        return "a name that Apptainer would take apart (only letters, digits and ._+- are safe)"
    if not os.path.isdir(path):
        return "no such directory"
    if not os.access(path, os.W_OK | os.X_OK):
        return "not writable"
    kind = file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        return f"on {kind}, where no overlay can be written"
    return "mounted noexec: no program could be started from there" if os.statvfs(path).f_flag & os.ST_NOEXEC else ""


def file_system(path: str) -> str:
    """Return the type of the file system that a path is on, or "" where that cannot be told."""
    wanted, best, kind = os.path.realpath(path) + "/", "", ""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                _, point, name, *_rest = line.split()
                if wanted.startswith(point.rstrip("/") + "/") and len(point) >= len(best):
                    best, kind = point, name
    except OSError:
        return ""
    return kind


def claim(directory: Path) -> bool:
    """Make a directory of this user's alone; tell whether it is that."""
    try:
        directory.mkdir(mode=0o700)
    except OSError:
        pass  # whose it is decides
    return is_private(directory)


def is_private(directory: Path) -> bool:
    """Tell whether a directory is this user's, and nobody else can write it; a link to one is not."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
