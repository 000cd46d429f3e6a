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
    plan = _Planner(pristine, listing, protection)
    plan.take_over()
    plan.take_away()
    return plan.result()


class _Planner:
    def __init__(self, pristine: Listing, listing: Listing, protection: Protection) -> None:
        self._pristine, self._listing, self._protection = pristine, listing, protection
        self._there = {b"/"}  # paths that will be real directories, not links
        self._chosen: dict[bytes, list[bytes]] = {DIRECTORY: [], FILE: [], LINK: []}
        self._removed: set[bytes] = set()
        self._withheld: list[bytes] = []

    def take_over(self) -> None:
        for path in sorted(self._listing):
            entry, before = self._listing[path], self._pristine.get(path)
            if before is not None and before.same(entry):
                if entry.kind == DIRECTORY and posixpath.dirname(path) in self._there:
                    self._there.add(path)
            elif self._may(path):
                self._chosen[entry.kind].append(path)
                if entry.kind == DIRECTORY:
                    self._there.add(path)
                if before is not None and before.kind != entry.kind:
                    self._removed.add(path)
            else:
                self._withheld.append(path)
                if before is not None and before.kind == DIRECTORY and posixpath.dirname(path) in self._there:
                    self._there.add(path)

    def take_away(self) -> None:
        for path in sorted(self._pristine):
            if path in self._listing or posixpath.dirname(path) in self._removed:
                if path not in self._listing:
                    self._removed.add(path)
                continue
            if self._protection.holds(path, self._listing) or self._protection.is_above(path):
                self._withheld.append(path)
            elif posixpath.dirname(path) in self._there:
                self._removed.add(path)

    def result(self) -> ChangePlan:
        withheld = set(self._withheld)
        return ChangePlan(
            remove=tuple(path for path in sorted(self._removed) if posixpath.dirname(path) not in self._removed),
            directories=tuple(self._chosen[DIRECTORY]),
            files=tuple(self._chosen[FILE]),
            links=tuple(self._chosen[LINK]),
            withheld=tuple(path for path in sorted(withheld) if posixpath.dirname(path) not in withheld),
        )

    def _may(self, path: bytes) -> bool:
        entry = self._listing[path]
        if entry.kind not in self._chosen or self._protection.holds(path, self._listing):
            return False
        if entry.kind != DIRECTORY and self._protection.is_above(path):
            return False
        return posixpath.dirname(path) in self._there
