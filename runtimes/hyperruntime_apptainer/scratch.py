"""Choose the directory for containers' files on this machine."""

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
    """Return the first usable one of ``APPTAINER_TMPDIR``, ``TMPDIR``, ``SCRATCH``, ``/tmp`` and ``/var/tmp``.

    Without a usable one, return ``/tmp``.
    """
    return next((path for _, path, why in candidates() if not why), "/tmp")  # noqa: S108


def candidates() -> Iterator[tuple[str, str, str]]:
    """Yield each candidate's variable, directory and the reason why it is unusable ("" if it is usable)."""
    for name in VARIABLES:
        if path := os.environ.get(name):
            yield name, path, why_unusable(path)
    for path in ("/tmp", "/var/tmp"):  # noqa: S108 - a directory of our own is made in it
        yield "default", path, why_unusable(path)


def why_unusable(path: str) -> str:
    """Return why a directory cannot hold containers' files, or ""."""
    if not os.path.isabs(path):
        return "not an absolute path"
    if not _PLAIN_PATH.fullmatch(path):
        return "Apptainer would misread this path (only letters, digits and /._+- are safe)"
    if not os.path.isdir(path):
        return "no such directory"
    if not os.access(path, os.W_OK | os.X_OK):
        return "not writable"
    kind = file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        return f"on {kind}, which cannot hold a writable overlay"
    return "mounted noexec: programs there cannot be started" if os.statvfs(path).f_flag & os.ST_NOEXEC else ""


def file_system(path: str) -> str:
    """Return the type of a path's file system, or "" if it is unknown."""
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
    """Make a directory that only this user can write; return whether it is one."""
    try:
        directory.mkdir(mode=0o700)
    except OSError:
        pass  # it may exist: its owner and mode decide
    return is_private(directory)


def is_private(directory: Path) -> bool:
    """Return whether this user owns a directory and no other user can write it; False for a link."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
