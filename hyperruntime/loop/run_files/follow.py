"""Follow the journal of a run that another process makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hyperruntime.loop.run_files.archive import Archive, RunView, read_run, view_of
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import entry_of_line
from hyperruntime.runs.journal import Follower


class JournalFollower(Follower[GenId]):
    """The finished generations of a run, as its journal grows.

    Attributes:
        archive: the generations; directories without a line are not added.
    """

    def __init__(self, run_dir: Path) -> None:
        """Read nothing yet."""
        self._layout = Layout(run_dir)
        super().__init__(self._layout.journal)
        self.archive = Archive(self._layout)
        self._run_file: tuple[int, GenerateOptions, dict[str, Any]] | None = None

    @property
    def problems(self) -> list[str]:
        """One sentence for each line that could not be read."""
        return self.archive.problems + self.archive.skipped

    def take(self, line: bytes, begin: int) -> GenId | None:
        """Take a line; return the generation that it changed."""
        journal = self.journal
        entry = entry_of_line(line, journal.lines, journal.path.name, self.archive.problems)
        return None if entry is None else self.archive.take(journal.lines, entry)

    def view(self) -> RunView:
        """Return the run as of the last :meth:`read_new`; its options are read again.

        Raises:
            ArchiveError: ``run.json`` cannot be read.
        """
        options, stored = self._stored()
        return view_of(
            str(self._layout.root),
            options,
            stored,
            tuple(self.archive),
            self.problems,
            is_owned=self.is_owned,
        )

    def _stored(self) -> tuple[GenerateOptions, dict[str, Any]]:
        try:
            changed_ns = os.stat(self._layout.run).st_mtime_ns
        except OSError:
            changed_ns = 0
        if self._run_file is None or self._run_file[0] != changed_ns:
            self._run_file = changed_ns, *read_run(self._layout)
        return self._run_file[1:]
