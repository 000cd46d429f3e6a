"""A run whose journal is followed: what is new since a position in it.

A position is ``INODE-OFFSET``: which file, and how much of it. It stays valid when the server is
started again.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from hyperruntime.loop.run_files.follow import JournalFollower, running_generations
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import genid_from_json
from hyperruntime.report.page.generations import LoopRun
from hyperruntime.runs.journal import GrowingFile
from hyperruntime.secrets.known import Secrets


class Source(Protocol):
    """A run of one kind, read from its journal."""

    @property
    def journal(self) -> GrowingFile:
        """The file that is read."""
        ...

    def read_new(self) -> Sequence[tuple[int, Any]]:
        """Read new lines; return the end of each and the id of its entry."""
        ...

    def head(self) -> dict[str, Any]:
        """Return what the page says of the whole run, with its notes."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return the head and all columns."""
        ...

    def columns(self, ids: Sequence[Any]) -> dict[str, Any]:
        """Return the columns of some entries."""
        ...

    def details_of(self, name: str) -> dict[str, Any] | None:
        """Return the details of an entry by its name on the page; None if there are none."""
        ...


class FollowedRun:
    """A run and the order in which its entries came; it is used by one thread at a time.

    Attributes:
        version: grows with each change.
    """

    def __init__(self, source: Source) -> None:
        """Read nothing yet."""
        self._source = source
        self._read_bytes = 0  # less than the journal's after a read that failed in the middle
        self.version = 0
        self._ends: list[int] = []
        self._ids: list[Any] = []
        self._head: dict[str, Any] = {}

    @property
    def position(self) -> str:
        """How much of the journal was read, and is in :meth:`news`."""
        return f"{self._source.journal.inode:x}-{self._read_bytes}"

    @property
    def state(self) -> str:
        """The state of the run, such as ``running``."""
        return str(self._head.get("state", ""))

    def read_new(self) -> bool:
        """Read new lines and the head; return whether the head changed.

        Raises:
            ArchiveError: the run cannot be read.
        """
        for end, name in self._source.read_new():
            self._ends.append(end)
            self._ids.append(name)
            self.version += 1
        self._read_bytes = self._source.journal.position
        head = self._source.head()
        if head != self._head:
            self._head = head
            self.version += 1
            return True
        return False

    def was_replaced(self) -> bool:
        """Return whether another run is in the directory now."""
        return self._source.journal.was_replaced()

    def facts(self) -> dict[str, Any]:
        """Return everything that a page says at first."""
        return {**self._source.facts(), **self._head}

    def news(self, position: str) -> dict[str, Any] | None:
        """Return the changes since a position, for a page; None if the position belongs to another
        journal.
        """
        offset = self._offset(position)
        if offset is None:
            return None
        ids = list(dict.fromkeys(self._ids[bisect_right(self._ends, offset) :]))
        names = ("state", "models", "notes", "options", "now")
        return {
            **{name: self._head[name] for name in names if name in self._head},
            "rows": self._source.columns(ids),
        }

    def details(self, name: str) -> dict[str, Any] | None:
        """Return the details of an entry by its name on the page; None if there are none."""
        return self._source.details_of(name)

    def _offset(self, position: str) -> int | None:
        inode, dash, offset = position.partition("-")
        if not dash or not offset.isascii() or not offset.isdigit():
            return None
        known = self._source.journal
        is_same = inode == f"{known.inode:x}" or (inode == "0" and offset == "0")
        return int(offset) if is_same and int(offset) <= known.position else None


class LoopSource:
    """A run of the loop; a :class:`Source`."""

    def __init__(self, run_dir: Path, screen: Secrets) -> None:
        """Read nothing but the options.

        Args:
            run_dir: the run directory.
            screen: removes keys.

        Raises:
            ArchiveError: it is not the directory of a run.
        """
        self._follower = JournalFollower(run_dir)
        self._run_file = Layout(run_dir).run
        self._run = LoopRun(self._follower.view(), screen)
        self._known: tuple[bool, int] | None = None
        # not returned yet: run.json may be unreadable for a moment
        self._changed: list[tuple[int, GenId]] = []

    @property
    def journal(self) -> GrowingFile:
        """The file that is read."""
        return self._follower.journal

    def read_new(self) -> Sequence[tuple[int, GenId]]:
        """Read new lines; return the end of each and the id of its generation."""
        self._changed += self._follower.read_new()
        known = self._follower.is_owned, os.stat(self._run_file).st_mtime_ns
        if self._changed or known != self._known:
            self._run.show(self._follower.view())
            self._known = known
        changed, self._changed = self._changed, []
        return changed

    def head(self) -> dict[str, Any]:
        """Return what the page says of the whole run, with its notes."""
        running = running_generations(self._run_file.parent) if self._follower.is_owned else ()
        now = [[one.genid, one.step, one.started.timestamp()] for one in running]
        return {
            **self._run.head(),
            "now": now,
            "notes": [*self._follower.problems, *self._run.notes],
        }

    def facts(self) -> dict[str, Any]:
        """Return the head and all columns."""
        return self._run.facts()

    def columns(self, ids: Sequence[GenId]) -> dict[str, Any]:
        """Return the columns of some generations."""
        return self._run.columns([self._follower.archive[one] for one in ids])

    def details_of(self, name: str) -> dict[str, Any] | None:
        """Return the details of a generation."""
        try:
            genid = genid_from_json(int(name) if name.isascii() and name.isdigit() else name)
        except ValueError:
            return None
        return self._run.details_of(genid) if genid in self._follower.archive else None
