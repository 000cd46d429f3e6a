"""Follow the journal of a run that another process makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import ArchiveError
from hyperruntime.loop.run_files.archive import RunView, read_run, state_of
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import (
    GenerationMark,
    GenerationRecord,
    entry_of_line,
    parent_problem,
)
from hyperruntime.storage.growing_file import GrowingFile
from hyperruntime.storage.run_end import end_reason
from hyperruntime.storage.run_lock import owner_state


class JournalFollower:
    """The finished generations of a run, as its journal grows; it reads each line once and writes
    nothing.

    Attributes:
        journal: the file that is read.
        records: the generations, in the order of the journal.
        problems: one sentence for each line that could not be read.
        is_owned: whether a live process owned the run before the last read.
    """

    def __init__(self, run_dir: Path) -> None:
        """Read nothing yet."""
        self._layout = Layout(run_dir)
        self.journal = GrowingFile(self._layout.journal)
        self.records: dict[GenId, GenerationRecord] = {}
        self.problems: list[str] = []
        self._lines = 0
        self.is_owned = False
        # not returned yet: a read may fail after some lines
        self._changed: list[tuple[int, GenId]] = []
        self._run_file: tuple[int, GenerateOptions, dict[str, Any]] | None = None

    def read_new(self) -> list[tuple[int, GenId]]:
        """Read new lines; return the end of each line that changed a generation, and the
        generation's id.

        Raises:
            ArchiveError: the journal cannot be read.
        """
        # first: the run may end meanwhile
        self.is_owned = owner_state(self._layout.root) == "alive"
        try:
            for begin, length, line in self.journal.new_lines():
                self._lines += 1
                genid = self._take(line)
                if genid is not None:
                    self._changed.append((begin + length, genid))
        except OSError as error:
            raise ArchiveError(
                f"{str(self.journal.path)!r} cannot be read: {error.strerror}"
            ) from error
        changed, self._changed = self._changed, []
        return changed

    def view(self) -> RunView:
        """Return the run as of the last :meth:`read_new`; its options are read again.

        Raises:
            ArchiveError: ``run.json`` cannot be read.
        """
        options, stored = self._stored()
        state = state_of(options, self.records, is_owned=self.is_owned)
        return RunView(
            run_dir=str(self._layout.root),
            options=options,
            seed=stored["seed"],
            state=state,
            generations=tuple(self.records.values()),
            problems=tuple(self.problems),
            ended=end_reason(stored) if state == "interrupted" else "",
        )

    def _stored(self) -> tuple[GenerateOptions, dict[str, Any]]:
        try:
            changed_ns = os.stat(self._layout.run).st_mtime_ns
        except OSError:
            changed_ns = 0
        if self._run_file is None or self._run_file[0] != changed_ns:
            self._run_file = changed_ns, *read_run(self._layout)
        return self._run_file[1:]

    def _take(self, line: bytes) -> GenId | None:
        if not line.strip():
            return None
        try:
            entry = entry_of_line(line)
        except ValueError as error:
            self.problems.append(
                f"line {self._lines} of {self.journal.path.name} is damaged and was skipped: "
                f"{error}"
            )
            return None
        known = self.records.get(entry.genid)
        if isinstance(entry, GenerationMark):
            if known is None or entry.kind != "no-parent":
                return None
            entry = attrs.evolve(known, valid_parent=False)
        elif known is not None:
            return None  # the first line of a generation counts
        elif problem := parent_problem(entry, self.records):
            self.problems.append(
                f"line {self._lines} of {self.journal.path.name} was skipped: {problem}"
            )
            return None
        self.records[entry.genid] = entry
        return entry.genid
