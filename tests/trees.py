"""Compare trees of files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hyperruntime.host.process import run_process
from hyperruntime.layers.owners import as_root_inside

Snapshot = dict[bytes, tuple[object, ...]]


def snapshot(root: bytes | str | Path, *, times: bool = True) -> Snapshot:
    """Return all properties of a tree that a copy must keep."""
    found: Snapshot = {}
    todo = [os.fsencode(root)]
    while todo:
        path = todo.pop()
        info = os.lstat(path)
        kind, mode, content = stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode), b""
        if kind == stat.S_IFDIR:
            todo += [os.path.join(path, name) for name in os.listdir(path)]
        elif kind == stat.S_IFLNK:
            mode, content = 0, os.readlink(path)
        elif kind == stat.S_IFREG:
            content = Path(os.fsdecode(path)).read_bytes()
        found[os.path.relpath(path, os.fsencode(root))] = (
            kind,
            mode,
            content,
            int(info.st_mtime) if times else 0,
        )
    return found


def shown_inside(tree: str | Path, *, times: bool = True) -> bytes:
    """Return what a container sees of an image's tree: names, types, modes, times, owners and
    contents. Files of subordinate ids cannot be read from outside.

    Args:
        tree: the tree.
        times: whether times count; a directory that an archive does not name has that of its
            unpacking.
    """
    shown = "%p %y %m %T@ %U:%G %l" if times else "%p %y %m %U:%G %l"
    script = (
        'set -o pipefail; cd "$0" && find . -printf "$1\\n" | '
        "sed -E 's/ ([0-9]+)\\.[0-9]+ / \\1 /' | sort && "
        "find . -type f -print0 | sort -z | xargs -0 sha256sum"
    )
    args = as_root_inside(["bash", "-c", script, str(tree), shown])
    done = run_process(args, cwd="/")
    assert (done.exit_code, done.stderr) == (0, b"")
    return done.stdout
