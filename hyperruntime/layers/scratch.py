"""A lasting directory of containers' files on this machine, and the removal of such files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hyperruntime.host.engine_program import ALL_IDS
from hyperruntime.host.inherited import is_own_directory
from hyperruntime.host.process import run_process
from hyperruntime.host.temporary import scratch_directory

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
