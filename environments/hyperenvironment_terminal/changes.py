"""Compute the plan that applies an agent's changes to a fresh container of the same image; pure functions."""

from __future__ import annotations

import posixpath

import attrs

from hyperenvironment_terminal.listing import DIRECTORY, FILE, LINK, Listing
from hyperenvironment_terminal.protected import Protection


@attrs.frozen(kw_only=True)
class ChangePlan:
    """The steps that apply an agent's changes to a pristine container.

    Attributes:
        remove: paths that were removed or changed their kind; no path is below another one.
        directories: directories to create, or to give a new mode or owner; parents first.
        files: files to copy.
        links: links to create; they come last, so that nothing is written through a link.
        withheld: sorted paths; changes at and below them are not applied.
    """

    remove: tuple[bytes, ...] = ()
    directories: tuple[bytes, ...] = ()
    files: tuple[bytes, ...] = ()
    links: tuple[bytes, ...] = ()
    withheld: tuple[bytes, ...] = ()


def plan_changes(pristine: Listing, listing: Listing, protection: Protection) -> ChangePlan:
    """Return the plan for the changes between two listings.

    Args:
        pristine: listing of the pristine container.
        listing: listing of the agent's container; it is untrusted.
        protection: paths where changes are not applied.
    """
    real = {b"/"}  # paths that will be real directories, not links
    chosen: dict[bytes, list[bytes]] = {DIRECTORY: [], FILE: [], LINK: []}
    removed: set[bytes] = set()
    withheld: set[bytes] = set()

    for path in sorted(listing):
        entry, before = listing[path], pristine.get(path)
        below_real = posixpath.dirname(path) in real
        if before is not None and before.same(entry):
            becomes = entry.kind
        elif below_real and entry.kind in chosen and not _is_protected(path, entry.kind, listing, protection):
            chosen[entry.kind].append(path)
            becomes = entry.kind
            if before is not None and before.kind != entry.kind:
                removed.add(path)
        else:
            withheld.add(path)
            becomes = b"" if before is None else before.kind
        if becomes == DIRECTORY and below_real:
            real.add(path)

    for path in sorted(pristine.keys() - listing.keys()):
        if posixpath.dirname(path) in removed:
            removed.add(path)
        elif protection.holds(path, listing) or protection.is_above(path):
            withheld.add(path)
        elif posixpath.dirname(path) in real:
            removed.add(path)

    return ChangePlan(
        remove=_topmost(removed),
        directories=tuple(chosen[DIRECTORY]),
        files=tuple(chosen[FILE]),
        links=tuple(chosen[LINK]),
        withheld=_topmost(withheld),
    )


def _is_protected(path: bytes, kind: bytes, listing: Listing, protection: Protection) -> bool:
    """Return whether a path, or a path below it that a new file or link would replace, is protected."""
    return protection.holds(path, listing) or (kind != DIRECTORY and protection.is_above(path))


def _topmost(paths: set[bytes]) -> tuple[bytes, ...]:
    """Return the sorted paths whose directory is not among them."""
    return tuple(path for path in sorted(paths) if posixpath.dirname(path) not in paths)
