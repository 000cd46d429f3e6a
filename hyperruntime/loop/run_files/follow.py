"""Follow the journal of a run that another process makes."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.loop.run_files.archive import Archive, RunView, read_run, view_of
from hyperruntime.loop.run_files.layout import LOG, PHASES, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import entry_of_line
from hyperruntime.runs.journal import Follower
from hyperruntime.storage.run_files import open_run_file


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


_PART_BYTES = 256 * 1024  # of the beginning and of the end of a log
# As StepLog.run writes it when a step begins.
_STEP = re.compile(rb"^== ([ -~]{1,80})\n   since (\S{1,40})$", re.MULTILINE)


@attrs.frozen(kw_only=True)
class RunningGeneration:
    """A generation that is being made.

    Attributes:
        genid: its id, as text.
        step: its step; "" if its log has too much output since the step began.
        started: when its first step began.
    """

    genid: str
    step: str
    started: datetime

    @property
    def elapsed_s(self) -> float:
        """Seconds since its first step began."""
        return max(0.0, (datetime.now(UTC) - self.started).total_seconds())


def running_generations(run_dir: Path) -> tuple[RunningGeneration, ...]:
    """Return the generations of a run that are being made; of an interrupted run, those that were.

    What cannot be read is left out, because a generation may end at any moment.
    """
    work = Layout(run_dir).work
    names = sorted(path.name.removesuffix(PHASES) for path in work.glob(f"gen_*{PHASES}"))
    found = (_running(work / name / LOG, run_dir) for name in names)
    return tuple(one for one in found if one is not None)


def _running(log: Path, run_dir: Path) -> RunningGeneration | None:
    try:
        with os.fdopen(open_run_file(log, below=run_dir), "rb") as file:
            head = file.read(_PART_BYTES)
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _PART_BYTES))
            tail = file.read(_PART_BYTES)
        first = _STEP.search(head)
        steps = _STEP.findall(tail)
        if first is None:
            return None
        started = datetime.fromisoformat(first[2].decode())
    except (OSError, ValueError):
        return None
    if started.tzinfo is None:
        return None
    step = steps[-1][0].decode() if steps else ""
    return RunningGeneration(genid=log.parent.name.removeprefix("gen_"), step=step, started=started)
