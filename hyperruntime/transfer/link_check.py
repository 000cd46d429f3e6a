"""Check that a symbolic link stays in its tree."""

from __future__ import annotations


def link_problem(target: bytes, depth: int) -> str:
    """Return the reason why a link could lead out of its tree; empty if it cannot.

    ``..`` is allowed only at the start of a target. There it leaves a real directory, and these can be counted. After a
    name it leaves the directory that the name resolves to, which may be a link. So no chain of allowed links
    leads out of the tree.

    Args:
        target: target of the link, as stored.
        depth: number of directories between the top of the tree and the link.
    """
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    up = next((at for at, part in enumerate(parts) if part != b".."), len(parts))
    if not target or b"\0" in target or target.startswith(b"/"):
        return "a symbolic link to an absolute path"
    if up > depth:
        return "a symbolic link that leads out of the tree"
    return "a symbolic link with .. after a name" if b".." in parts[up:] else ""
