"""Choose the directory of temporary files: the one decision of all parts of the library.

``HYPERRUNTIME_SCRATCH`` wins. A directory on a network file system is never chosen: it holds no
writable overlay and no socket, and is slow. Design: docs/design/engines.md#temporary-files.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Iterator

import psutil

from hyperruntime.logs import get_logger

log = get_logger(__name__)

NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 lustre gpfs beegfs ceph afs cifs smb3 panfs dvs wekafs orangefs pvfs2 fuse.sshfs "
    "fuse.glusterfs fuse.ceph-fuse".split()
)
SCRATCH = "HYPERRUNTIME_SCRATCH"
VARIABLES = (SCRATCH, "APPTAINER_TMPDIR", "SINGULARITY_TMPDIR", "TMPDIR", "SCRATCH")
STEP = f"set {SCRATCH} to a directory on a local disk"
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")
_DEFAULTS = ("/tmp", "/var/tmp")  # noqa: S108 - a directory of our own is made in them


def temporary_directory() -> str:
    """Return the directory of small and private files: ``HYPERRUNTIME_SCRATCH``, else that of
    ``tempfile``, else ``/tmp`` or ``/var/tmp``; the first one that is a local directory.

    Without one, return that of ``tempfile``.

    Raises:
        FileNotFoundError: no directory can be written.
    """
    places = [("TMPDIR", tempfile.gettempdir()), *(("default", path) for path in _DEFAULTS)]
    if chosen := os.environ.get(SCRATCH):
        places.insert(0, (SCRATCH, chosen))
    tried = ((name, path, why_unusable(path, for_programs=False)) for name, path in places)
    return _first(tried) or tempfile.gettempdir()


def scratch_directory() -> str:
    """Return the directory of large files, from which programs start and over which layers are
    mounted: the first usable one of :func:`candidates`.

    Without a usable one, return ``/tmp``.
    """
    return _first(candidates()) or "/tmp"  # noqa: S108


def candidates() -> Iterator[tuple[str, str, str]]:
    """Yield each candidate's variable, directory and the reason why it is unusable ("" if it is
    usable).
    """
    for name in VARIABLES:
        if path := os.environ.get(name):
            yield name, path, why_unusable(path)
    for path in _DEFAULTS:
        yield "default", path, why_unusable(path)


def is_plain(path: str) -> bool:
    """Return whether the options of a mount can hold a path as it is."""
    return _PLAIN_PATH.fullmatch(path) is not None


def why_unusable(path: str, *, for_programs: bool = True) -> str:
    """Return why a directory cannot hold temporary files, or "".

    Args:
        path: the directory.
        for_programs: whether programs start from there, and layers are mounted over it.
    """
    if not os.path.isabs(path):
        return "not an absolute path"
    if for_programs and not is_plain(path):
        return "an overlay would misread this path (only letters, digits and /._+- are safe)"
    if not os.path.isdir(path):
        return "no such directory"
    if not os.access(path, os.W_OK | os.X_OK):
        return "not writable"
    if (kind := file_system(path)) in NETWORK_FILE_SYSTEMS:
        return f"on {kind}, a network file system, which holds no writable overlay and no socket"
    if for_programs and os.statvfs(path).f_flag & os.ST_NOEXEC:
        return "mounted noexec: programs there cannot be started"
    return ""


def file_system(path: str) -> str:
    """Return the type of the file system of a path, or "" if it is unknown."""
    wanted = os.path.realpath(path) + "/"
    try:
        mounts = reversed(psutil.disk_partitions(all=True))  # a later mount hides an earlier one
    except OSError:
        return ""
    around = (mount for mount in mounts if wanted.startswith(mount.mountpoint.rstrip("/") + "/"))
    found = max(around, key=lambda mount: len(mount.mountpoint), default=None)
    return found.fstype if found else ""


def _first(tried: Iterator[tuple[str, str, str]]) -> str:
    """Return the first usable directory, or ""; log once what a variable names in vain."""
    left_out: list[tuple[str, str]] = []
    for name, path, why in tried:
        if not why:
            for variable, reason in left_out:
                _tell(variable, reason, path)
            return path
        if name not in ("default", "SCRATCH"):
            left_out.append((name, f"{path}: {why}"))
    return ""


@functools.cache  # once
def _tell(variable: str, reason: str, used: str) -> None:
    log.warning("directory not used", variable=variable, reason=reason, used=used)
