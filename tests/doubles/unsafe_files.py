"""Files that an agent may have put where hyperruntime expects a small regular file."""

from __future__ import annotations

import os
from pathlib import Path

from hyperruntime.units import MIB


def make_unsafe(path: Path, kind: str) -> None:
    """Make a file that must not be read.

    Args:
        path: the file.
        kind: ``pipe``, whose reader waits; ``link`` to a readable file beside its directory;
            ``large``.
    """
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        outside = path.parent.parent / f"outside of {path.parent.name}"
        outside.write_text("# of the user\n")
        path.symlink_to(outside)
    else:
        path.write_text("#" * (2 * MIB))
