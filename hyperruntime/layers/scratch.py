"""Choose a directory for containers' files on this machine, and remove such files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hyperruntime.host.engine_findings import NETWORK_FILE_SYSTEMS, file_system
from hyperruntime.host.engine_program import ALL_IDS
from hyperruntime.host.inherited import is_own_directory
from hyperruntime.host.process import run_process

_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")
VARIABLES = ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR", "TMPDIR", "SCRATCH")
# Only modes of directories change, because images share files by hard links. The last way is for
# files of other users, which have this user's subordinate ids.
REMOVE_TREE = (
    'rm -rf -- "$@" 2>/dev/null || '
    '{ find "$@" -type d -exec chmod u+rwx {} ";"; rm -rf -- "$@"; } 2>/dev/null || '
    f'unshare {" ".join(ALL_IDS)} rm -rf -- "$@"'
)


def remove_tree(*paths: str) -> None:
    """Remove files and directories, even if their modes forbid it or they have subordinate ids."""
    run_process(["/bin/sh", "-c", REMOVE_TREE, "remove", *paths], cwd="/")


def scratch_directory() -> str:
    """Return the first usable one of :data:`VARIABLES`, ``/tmp`` and ``/var/tmp``.

    Without a usable one, return ``/tmp``.
    """
    return next((path for _, path, why in candidates() if not why), "/tmp")  # noqa: S108


def own_scratch(purpose: str) -> Path | None:
    """Return a lasting directory of this user on a disk of this machine; None if it is unusable.

    Such disks are shared: a directory there that another user owns or can write is not used.

    Args:
        purpose: part of its name.
    """
    found = Path(scratch_directory(), f"hyperruntime-{os.getuid()}-{purpose}")
    with suppress(OSError):  # it may exist: its owner and mode decide
        found.mkdir(mode=0o700)
    return found if is_own_directory(str(found)) else None


def candidates() -> Iterator[tuple[str, str, str]]:
    """Yield each candidate's variable, directory and the reason why it is unusable ("" if it is
    usable).
    """
    for name in VARIABLES:
        if path := os.environ.get(name):
            yield name, path, why_unusable(path)
    for path in ("/tmp", "/var/tmp"):  # noqa: S108 - a directory of our own is made in it
        yield "default", path, why_unusable(path)


def is_plain(path: str) -> bool:
    """Return whether the options of a mount can hold a path as it is."""
    return _PLAIN_PATH.fullmatch(path) is not None


def why_unusable(path: str) -> str:
    """Return why a directory cannot hold containers' files, or ""."""
    if not os.path.isabs(path):
        return "not an absolute path"
    if not is_plain(path):
        return "an overlay would misread this path (only letters, digits and /._+- are safe)"
    if not os.path.isdir(path):
        return "no such directory"
    if not os.access(path, os.W_OK | os.X_OK):
        return "not writable"
    kind = file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        return f"on {kind}, which cannot hold a writable overlay"
    return (
        "mounted noexec: programs there cannot be started"
        if os.statvfs(path).f_flag & os.ST_NOEXEC
        else ""
    )
