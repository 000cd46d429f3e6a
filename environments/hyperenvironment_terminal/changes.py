"""What an agent changed, as a plan for another container of the same image. Pure: lists in, a plan out."""

from __future__ import annotations

import posixpath

import attrs

from hyperenvironment_terminal.listing import DIRECTORY, FILE, LINK, Listing
from hyperenvironment_terminal.protected import Protection


@attrs.frozen(kw_only=True)
class ChangePlan:
    """How a pristine container is made to hold an agent's work.

    Attributes:
        remove: paths that are not there any more, or are something else now; nothing below another of them.
        directories: made or given their mode and owner, parents first.
        files: whose content is fetched.
        links: made last, so that nothing is written through one.
        withheld: paths at and below which a change is not taken over, in order.
    """

    remove: tuple[bytes, ...] = ()
    directories: tuple[bytes, ...] = ()
    files: tuple[bytes, ...] = ()
    links: tuple[bytes, ...] = ()
    withheld: tuple[bytes, ...] = ()


def plan_changes(pristine: Listing, listing: Listing, protection: Protection) -> ChangePlan:
    """Return what to take over from a list that may be a lie."""
    plan = _Planner(pristine, listing, protection)
    plan.take_over()
    plan.take_away()
    return plan.result()


class _Planner:
    def __init__(self, pristine: Listing, listing: Listing, protection: Protection) -> None:
        self._pristine, self._listing, self._protection = pristine, listing, protection
        self._there = {b"/"}  # what will be a directory, and no link to one
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
