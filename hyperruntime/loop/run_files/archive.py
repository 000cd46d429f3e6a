"""The finished generations of a run, read from its journal and held in memory.

The journal has one line per generation, appended after the generation's directory got its final
name. Truncated and damaged lines are skipped and reported. A finished directory without a line is
added; a repeated line is skipped. A selection of parents reads no file.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs

from hyperruntime.errors import ArchiveError
from hyperruntime.json_values import parse_json
from hyperruntime.loop.run_files.layout import (
    FIRST_SPLIT,
    INITIAL,
    METADATA,
    SELECTED_SPLIT,
    Layout,
    generation_name,
    generations_in,
)
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import Candidate, GenId
from hyperruntime.loop.run_files.record import (
    SCHEMA,
    GenerationMark,
    GenerationRecord,
    mark_to_json,
    parent_problem,
    read_journal,
    record_from_json,
    record_to_json,
)
from hyperruntime.loop.run_files.selection import Selection, read_diff
from hyperruntime.option_fields import from_json, to_json
from hyperruntime.runs.lock import owner_state
from hyperruntime.runs.run_file import end_reason, read_run_value, write_run_value
from hyperruntime.storage.atomic import append_line, json_line, storage_errors, write_atomic
from hyperruntime.storage.run_files import MOST_JSON_BYTES, open_run_file, read_run_file

RunState = Literal["running", "finished", "interrupted"]


@attrs.frozen(kw_only=True)
class RunView:
    """A run as its files describe it.

    Attributes:
        run_dir: the run directory.
        options: the options of the run.
        seed: seed of the run's random choices.
        state: ``running``, ``finished`` or ``interrupted``.
        generations: the finished generations, in the order of the archive.
        problems: one sentence for each line or file that could not be read.
        ended: why an interrupted run ended, or "" if that is unknown.
    """

    run_dir: str
    options: GenerateOptions
    seed: int
    state: RunState
    generations: tuple[GenerationRecord, ...]
    problems: tuple[str, ...]
    ended: str = ""

    @property
    def wanted(self) -> int:
        """Number of all generations of the run, made or not."""
        asked = {self.options.first_genid, *range(1, self.options.max_generation + 1)}
        return len(asked.union(record.genid for record in self.generations))


class Archive:
    """The finished generations; the cost of adding one does not grow with their number.

    Attributes:
        problems: one sentence for each line or file that could not be read.
        marks: facts about generations that were learned after they had finished.
    """

    def __init__(self, layout: Layout) -> None:
        """Create an empty archive that appends to the files of ``layout``."""
        self.problems: list[str] = []
        self.marks: list[GenerationMark] = []
        self._journal = layout.journal
        self._file = ArchiveFile(layout.archive)
        self._records: dict[GenId, GenerationRecord] = {}
        self._ids: list[GenId] = []
        self._children: Counter[GenId] = Counter()
        self._depths: dict[GenId, int] = {}
        self._unselecting: set[GenId] = set()
        self._unlisted: list[GenerationRecord] = []
        self._without_parent: dict[GenId, tuple[GenerationRecord, str]] = {}

    @classmethod
    def load(cls, layout: Layout) -> Archive:
        """Return the archive of a run directory; write nothing.

        Raises:
            ArchiveError: the journal cannot be read.
        """
        archive = cls(layout)
        for number, entry in read_journal(layout.journal, archive.problems):
            archive.take(number, entry)
        archive._adopt(layout)
        archive.problems += archive.skipped
        return archive

    def take(self, number: int, entry: GenerationRecord | GenerationMark) -> GenId | None:
        """Take an entry of the journal; return the generation that it added or changed.

        Args:
            number: of its line.
            entry: content of the line.
        """
        if isinstance(entry, GenerationMark):
            return self._apply(entry)
        if entry.genid in self:
            self.problems.append(
                f"line {number} of {self._journal.name} repeats generation {entry.genid} and was "
                "skipped"
            )
            return None
        if problem := parent_problem(entry, self):
            problem = f"line {number} of {self._journal.name} was skipped: {problem}"
            self._without_parent[entry.genid] = entry, problem
            return None
        self._index(entry)
        return entry.genid

    @property
    def skipped(self) -> list[str]:
        """One sentence for each line whose parent is not before it."""
        skipped = self._without_parent.items()
        return [problem for genid, (_, problem) in skipped if genid not in self._records]

    def add(self, record: GenerationRecord) -> None:
        """Store a record durably.

        Raises:
            StorageError: the record cannot be written.
            ArchiveError: the generation is already in the archive.
        """
        if record.genid in self._records:
            raise ArchiveError(f"generation {record.genid} is in the archive already")
        append_line(self._journal, record_to_json(record))
        self._index(record)
        self._file.add(self._ids)

    def mark(self, mark: GenerationMark) -> None:
        """Store a mark durably; do nothing if the archive has this fact already.

        Raises:
            StorageError: the mark cannot be written.
            ArchiveError: the generation is not in the archive.
        """
        if mark.genid not in self._records:
            raise ArchiveError(f"generation {mark.genid} is not in the archive")
        if mark.kind == "no-parent" and not self._records[mark.genid].valid_parent:
            return
        if mark.kind == "no-selection" and mark.genid in self._unselecting:
            return
        append_line(self._journal, mark_to_json(mark))
        self._apply(mark)

    def repair(self) -> None:
        """Append the journal lines that a killed run did not write, and correct ``archive.jsonl``.

        Raises:
            StorageError: a line cannot be written.
        """
        for record in self._unlisted:
            append_line(self._journal, record_to_json(record))
        self._unlisted.clear()
        self._file.repair(self._ids)

    def expect(self, ids: Sequence[GenId]) -> None:
        """Make ``archive.jsonl`` list ``ids``, which the caller adds next; :meth:`add` then does
        not list them again.

        Raises:
            StorageError: ``archive.jsonl`` cannot be written.
        """
        self._file.repair(ids)

    def finish(self) -> None:
        """Make the last line of ``archive.jsonl`` list all generations; called when a run stops.

        Raises:
            StorageError: ``archive.jsonl`` cannot be written.
        """
        self._file.flush(self._ids)

    @property
    def first(self) -> GenerationRecord:
        """The first generation, the ancestor of all others; the archive must not be empty."""
        return self._records[self._ids[0]]

    def __len__(self) -> int:
        """Return the number of generations."""
        return len(self._records)

    def __iter__(self) -> Iterator[GenerationRecord]:
        """Return the generations in the order in which they were archived."""
        return iter(tuple(self._records.values()))

    def __contains__(self, genid: object) -> bool:
        """Return whether a generation is finished."""
        return genid in self._records

    def __getitem__(self, genid: GenId) -> GenerationRecord:
        """Return a generation."""
        return self._records[genid]

    def get(self, genid: GenId) -> GenerationRecord | None:
        """Return a generation, or None if it is not finished."""
        return self._records.get(genid)

    def candidates(self) -> list[Candidate]:
        """Return the generations that may become a parent, in archive order; if none may, the first
        generation.
        """
        first = self._ids[0] if self._ids else INITIAL
        found = [
            Candidate(record.genid, record.score, self._children[record.genid], _metrics(record))
            for record in self
            if record.valid_parent and record.score is not None
        ]
        return found or [Candidate(first, 0.0, self._children[first])]

    def selection(self, layout: Layout, *, generation: int, seed: int) -> Selection:
        """Return what a selection rule sees when it chooses the parent of a generation.

        Args:
            layout: paths of the run, for the diffs.
            generation: number of the new generation.
            seed: seed of the run.
        """
        return Selection(
            generation=generation,
            candidates=tuple(self.candidates()),
            parents={record.genid: record.parent for record in self} or {INITIAL: None},
            seed=seed,
            diff=partial(read_diff, layout),
        )

    def can_select(self, genid: GenId) -> bool:
        """Return whether a generation is archived and its own parent selection has no recorded
        failure.
        """
        return genid in self._records and genid not in self._unselecting

    def best(self) -> GenerationRecord | None:
        """Return the generation with the highest score, the earlier one on a tie."""
        return best_generation(self)

    def depth(self, genid: GenId) -> int:
        """Return the number of steps from the first generation to this one; 0 for an unknown
        generation.
        """
        return self._depths.get(genid, 0)

    def lineage(self, genid: GenId, chapter: int) -> tuple[list[GenId], GenId | None]:
        """Return the latest part of a generation's lineage, oldest first, and the ancestor before
        it.

        The list ends with ``genid``. It starts after the last generation whose depth is a multiple
        of ``chapter``, and this generation is returned too; if it is ``genid`` itself, the list is
        empty. A lineage without such a generation is listed from after the first generation; the
        second value is then None.

        Args:
            genid: the generation.
            chapter: the depth interval at which a lineage is cut; the list has fewer entries than
                this.
        """
        chain: list[GenId] = []
        at: GenId | None = genid
        while at is not None and (depth := self.depth(at)) > 0:
            if depth % chapter == 0:
                return chain[::-1], at
            chain.append(at)
            at = self._records[at].parent
        return chain[::-1], None

    def _index(self, record: GenerationRecord) -> None:
        self._records[record.genid] = record
        self._ids.append(record.genid)
        self._depths[record.genid] = 0 if record.parent is None else self.depth(record.parent) + 1
        if record.parent is not None:
            self._children[record.parent] += 1

    def _apply(self, mark: GenerationMark) -> GenId | None:
        """Take a mark; return the generation whose record it changed."""
        self.marks.append(mark)
        if mark.kind == "no-selection":
            self._unselecting.add(mark.genid)
        elif record := self._records.get(mark.genid):
            self._records[mark.genid] = attrs.evolve(record, valid_parent=False)
            return mark.genid
        return None

    def _adopt(self, layout: Layout) -> None:
        """Add the finished directories that have no line in the journal, parents first.

        A record whose parent is not before it in the journal is added if its parent was added here.
        """
        for genid in generations_in(layout.root):
            if genid in self._records:
                continue
            skipped = self._without_parent.get(genid)
            try:
                record = skipped[0] if skipped else _stored_record(layout, genid)
            except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                self.problems.append(f"{generation_name(genid)} has no readable {METADATA}: {why}")
                continue
            if problem := parent_problem(record, self):
                if not skipped:
                    self.problems.append(f"{generation_name(genid)} was skipped: {problem}")
            elif record.genid == genid:
                self._unlisted.append(record)
                self._index(record)


def _stored_record(layout: Layout, genid: GenId) -> GenerationRecord:
    data = read_run_file(
        layout.generation(genid) / METADATA, below=layout.root, most_bytes=MOST_JSON_BYTES
    )
    return record_from_json(parse_json(data, finite=True)["hyperruntime"])


def _metrics(record: GenerationRecord) -> dict[str, float]:
    """Return the means of the metrics on the splits that select parents, over the domains."""
    chosen = [
        splits.get(SELECTED_SPLIT) or splits.get(FIRST_SPLIT) or {}
        for splits in record.metrics.values()
    ]
    found = {n: [each[n] for each in chosen if n in each] for each in chosen for n in each}
    return {n: math.fsum(x / len(values) for x in values) for n, values in found.items()}


def best_generation(records: Iterable[GenerationRecord]) -> GenerationRecord | None:
    """Return the generation with the highest score, the earlier one on a tie; None without any."""
    scored = [record for record in records if record.score is not None]
    return max(scored, key=lambda record: record.score or 0.0, default=None)


def load_run(run_dir: str | os.PathLike[str]) -> RunView:
    """Return a run as its files describe it; write nothing. The run may be in progress.

    Raises:
        ArchiveError: the directory is not a run directory, or its ``run.json`` or journal cannot be
            read.
    """
    layout = Layout(Path(run_dir))
    options, stored = read_run(layout)
    # before the archive is read: the run may end meanwhile
    is_owned = owner_state(layout.root) == "alive"
    archive = Archive.load(layout)
    return view_of(
        str(run_dir), options, stored, tuple(archive), archive.problems, is_owned=is_owned
    )


def view_of(
    run_dir: str,
    options: GenerateOptions,
    stored: Mapping[str, Any],
    generations: tuple[GenerationRecord, ...],
    problems: Iterable[str],
    *,
    is_owned: bool,
) -> RunView:
    """Return a run as read from its files.

    Args:
        run_dir: the run directory.
        options: the options of the run.
        stored: content of its ``run.json``.
        generations: the finished generations.
        problems: one sentence for each line or file that could not be read.
        is_owned: whether a live process owned the directory before the generations were read.
    """
    made = {record.genid for record in generations}
    is_full = options.first_genid in made and all(
        number in made for number in range(1, options.max_generation + 1)
    )
    state: RunState = "running" if is_owned else "finished" if is_full else "interrupted"
    return RunView(
        run_dir=run_dir,
        options=options,
        seed=stored["seed"],
        state=state,
        generations=generations,
        problems=tuple(problems),
        ended=end_reason(stored) if state == "interrupted" else "",
    )


def write_run(
    layout: Layout, options: GenerateOptions, facts: Mapping[str, Any], *, mark: bool = True
) -> dict[str, Any]:
    """Write ``run.json`` and return its content.

    Args:
        layout: paths of the run.
        options: options of the run.
        facts: further facts, or the earlier content of the file.
        mark: whether to mark the file as this user's: the user chose or accepted what it asks for.

    Raises:
        StorageError: the file cannot be written.
    """
    value = {"schema": SCHEMA, "seed": options.seed, **facts, "options": to_json(options)}
    return write_run_value(layout.run, value, mark=mark)


def read_run(layout: Layout) -> tuple[GenerateOptions, dict[str, Any]]:
    """Return the options and the whole content of ``run.json``.

    Raises:
        ArchiveError: ``run.json`` does not exist or cannot be read.
    """
    try:
        value = read_run_value(layout.run)
    except ArchiveError as error:
        if not isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
            raise
        step = "give a generate_<run_id> directory"
        if layout.archive.is_file():
            resume = f"hyperrun resume {shlex.quote(str(layout.root))}"
            step = f"if HyperAgents wrote it, `{resume}` imports and resumes it"
        raise ArchiveError(
            f"{str(layout.root)!r} is not a run directory: {layout.run.name} is missing; {step}"
        ) from None
    if not isinstance(value, dict) or not isinstance(value.get("seed"), int):
        raise ArchiveError(
            f"{str(layout.run)!r} is not a valid run file: it has no seed; start a new run"
        )
    return from_json(GenerateOptions, value.get("options", {}), strict=False), value


_EVERY = 256


class ArchiveFile:
    """Writes ``archive.jsonl``; the bytes per generation do not grow with the number of
    generations.
    """

    def __init__(self, path: Path) -> None:
        """Append to ``path``; call :meth:`repair` first if the file exists."""
        self._path = path
        self._listed = 0

    def add(self, ids: Sequence[GenId]) -> bool:
        """Write a line if one is due; return whether one was. ``ids`` are all generations, the
        newest last.

        Raises:
            StorageError: a line cannot be written.
        """
        due = len(ids) > self._listed and (
            len(ids) <= _EVERY or (len(ids) - self._listed) * _EVERY >= len(ids)
        )
        if due:
            self.flush(ids)
        return due

    def flush(self, ids: Sequence[GenId]) -> None:
        """Append a line that lists all ``ids``, unless the last line does.

        Raises:
            StorageError: a line cannot be written.
        """
        if len(ids) > self._listed:
            append_line(self._path, _line(ids))
            self._listed = len(ids)

    def repair(self, ids: Sequence[GenId]) -> None:
        """Remove a truncated last line and append a line if ids are missing; rewrite a file that
        lists other ids.

        Raises:
            StorageError: the file cannot be written.
        """
        with storage_errors(self._path):
            listed = _last_list(self._path)
        if listed is None or listed != list(ids[: len(listed)]):
            write_atomic(self._path, json_line(_line(ids)) if ids else b"")
            self._listed = len(ids)
        else:
            self._listed = len(listed)
        self.flush(ids)


def _line(ids: Sequence[GenId]) -> dict[str, Any]:
    return {"current_genid": ids[-1], "archive": list(ids)}


def _last_list(path: Path) -> list[GenId] | None:
    """Remove a truncated last line; return the ids of the last complete line, or None if that line
    is not valid.
    """
    try:
        file = os.fdopen(open_run_file(path, below=path.parent, flags=os.O_RDWR), "rb+")
    except FileNotFoundError:
        return []
    with file:
        if os.fstat(file.fileno()).st_size == 0:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            end = data.rfind(b"\n") + 1
            text = data[data.rfind(b"\n", 0, max(0, end - 1)) + 1 : end]
        file.truncate(end)
    if not text:
        return []
    try:
        listed = json.loads(text)["archive"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return listed if isinstance(listed, list) else None
