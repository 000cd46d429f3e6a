"""Say whether a symbolic link stays in its tree."""

from __future__ import annotations


def link_problem(target: bytes, depth: int) -> str:
    """Return why a link, ``depth`` directories below the top, could lead out of its tree, or nothing.

    Steps up are allowed at the front only: there they leave real directories, which can be counted; after a
    name they would leave whatever that name leads to. So no chain of allowed links leads out either.
    """
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    up = next((at for at, part in enumerate(parts) if part != b".."), len(parts))
    if not target or b"\0" in target or target.startswith(b"/"):
        return "a symbolic link to an absolute path"
    if up > depth:
        return "a symbolic link that leads out of the tree"
    return "a symbolic link with .. after a name" if b".." in parts[up:] else ""
