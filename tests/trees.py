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


def shown_inside(tree: str | Path) -> bytes:
    """Return what a container sees of an image's tree: names, types, modes, times, owners and
    contents. Files of subordinate ids cannot be read from outside.
    """
    script = (
        "set -o pipefail; cd \"$0\" && find . -printf '%p %y %m %T@ %U:%G %l\\n' | "
        "sed -E 's/ ([0-9]+)\\.[0-9]+ / \\1 /' | sort && "
        "find . -type f -print0 | sort -z | xargs -0 sha256sum"
    )
    shown = run_process(as_root_inside(["bash", "-c", script, str(tree)]), cwd="/")
    assert (shown.exit_code, shown.stderr) == (0, b"")
    return shown.stdout
