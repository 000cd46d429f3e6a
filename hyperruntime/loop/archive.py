"""The finished generations of a run, read tolerantly and held in memory; imports layout, record and lock.

``archive.jsonl`` has one line per generation, appended after the generation's directory got its final name. A line
that is torn or damaged is skipped and named; a finished directory without a line is adopted; none counts twice.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import attrs

from hyperruntime.errors import ArchiveError
from hyperruntime.loop.layout import INITIAL, METADATA, Layout, generation_name, parse_genid
from hyperruntime.loop.lock import owner_state
from hyperruntime.loop.options import GenerateOptions, options_from_json
from hyperruntime.loop.record import GenerationRecord, record_from_json, record_to_json
from hyperruntime.loop.selection import Candidate, GenId
from hyperruntime.loop.storage import append_line

RunState = Literal["running", "finished", "interrupted"]


@attrs.frozen(kw_only=True)
class RunView:
    """A run as its files say it is.

    Attributes:
        run_dir: where it is.
        options: what was asked for.
        seed: of its choices.
        state: ``running``, ``finished`` or ``interrupted``.
        generations: the finished ones, in the order in which they were archived.
        problems: one sentence for each thing that could not be read.
    """

    run_dir: str
    options: GenerateOptions
    seed: int
    state: RunState
    generations: tuple[GenerationRecord, ...]
    problems: tuple[str, ...]


class Archive:
    """The finished generations; adding one costs the same however many there are.

    Attributes:
        problems: one sentence for each thing that could not be read.
    """

    def __init__(self, path: Path) -> None:
        """Start empty; records go to ``path``."""
        self.problems: list[str] = []
        self._path = path
        self._records: dict[GenId, GenerationRecord] = {}
        self._children: Counter[GenId] = Counter()

    @classmethod
    def load(cls, layout: Layout) -> Archive:
        """Return what a run directory holds; nothing is written."""
        archive = cls(layout.archive)
        for number, line in enumerate(_lines(layout.archive), 1):
            archive._take_line(number, line)
        for record in archive._unlisted(layout):
            archive._index(record)
        return archive

    def add(self, record: GenerationRecord) -> None:
        """Store a record, durably.

        Raises:
            StorageError: it cannot be written.
            ArchiveError: this generation is in the archive already.
        """
        if record.genid in self._records:
            raise ArchiveError(f"generation {record.genid} is in the archive already")
        append_line(self._path, record_to_json(record))
        self._index(record)

    def repair(self, layout: Layout) -> None:
        """Write the lines that are missing, of generations that were finished when a run was killed.

        Raises:
            StorageError: a line cannot be written.
        """
        listed = {record.genid for record in _listed(layout.archive)}
        for record in self:
            if record.genid not in listed:
                append_line(self._path, record_to_json(record))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._records)

    def __iter__(self) -> Iterator[GenerationRecord]:
        """Return them in the order in which they were archived."""
        return iter(tuple(self._records.values()))

    def __contains__(self, genid: object) -> bool:
        """Tell whether a generation is finished."""
        return genid in self._records

    def __getitem__(self, genid: GenId) -> GenerationRecord:
        """Return a generation."""
        return self._records[genid]

    def candidates(self) -> list[Candidate]:
        """Return who may become a parent; the initial generation where nobody else may."""
        found = [
            Candidate(record.genid, record.score, self._children[record.genid])
            for record in self._records.values()
            if record.valid_parent and record.score is not None
        ]
        return found or [Candidate(INITIAL, 0.0, self._children[INITIAL])]

    def best(self) -> GenerationRecord | None:
        """Return the generation with the highest score, the earlier one on a tie."""
        scored = [record for record in self if record.score is not None]
        return max(scored, key=lambda record: record.score or 0.0, default=None)

    def lineage(self, genid: GenId, limit: int) -> list[GenId] | None:
        """Return the ids from the first generation's child to this one; None when they are more than ``limit``."""
        chain: list[GenId] = []
        at: GenId | None = genid
        while at is not None and at != INITIAL:
            if len(chain) >= limit:
                return None
            chain.append(at)
            at = self._records[at].parent if at in self._records else None
        return chain[::-1]

    def _index(self, record: GenerationRecord) -> None:
        self._records[record.genid] = record
        if record.parent is not None:
            self._children[record.parent] += 1

    def _take_line(self, number: int, line: bytes) -> None:
        try:
            record = record_from_json(json.loads(line))
        except (ValueError, RecursionError) as error:
            self.problems.append(f"line {number} of {self._path.name} is damaged and was skipped: {error}")
            return
        if record.genid in self._records:
            self.problems.append(
                f"line {number} of {self._path.name} repeats generation {record.genid} and was skipped"
            )
            return
        self._index(record)

    def _unlisted(self, layout: Layout) -> list[GenerationRecord]:
        found = []
        for genid in _finished_directories(layout.root):
            if genid in self._records:
                continue
            try:
                metadata = json.loads((layout.generation(genid) / METADATA).read_bytes())
                record = record_from_json(metadata["hyperruntime"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                self.problems.append(f"{generation_name(genid)} has no readable {METADATA}: {error}")
                continue
            if record.genid == genid:
                found.append(record)
        return sorted(found, key=lambda record: -1 if record.genid == INITIAL else int(record.genid))


def load_run(run_dir: str | os.PathLike[str]) -> RunView:
    """Return a run as its files say it is; nothing is written, and a run that is going on may be read.

    Raises:
        ArchiveError: the directory is no run, or its ``run.json`` cannot be read.
    """
    layout = Layout(Path(run_dir))
    options, seed = read_run(layout)[:2]
    archive = Archive.load(layout)
    state: RunState = "interrupted"
    if owner_state(layout.root) in ("alive", "elsewhere"):
        state = "running"
    elif INITIAL in archive and all(number in archive for number in range(1, options.max_generation + 1)):
        state = "finished"
    return RunView(
        run_dir=str(run_dir),
        options=options,
        seed=seed,
        state=state,
        generations=tuple(archive),
        problems=tuple(archive.problems),
    )


def read_run(layout: Layout) -> tuple[GenerateOptions, int, dict[str, Any]]:
    """Return the options, the seed and all else of ``run.json``.

    Raises:
        ArchiveError: there is none, or it cannot be read.
    """
    try:
        value = json.loads(layout.run.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ArchiveError(
            f"{str(layout.root)!r} is no run directory: it has no {layout.run.name}; give a generate_<run_id> directory"
        ) from None
    except (OSError, ValueError) as error:
        raise ArchiveError(f"{str(layout.run)!r} cannot be read: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("seed"), int):
        raise ArchiveError(f"{str(layout.run)!r} is not what a run stores: it has no seed")
    return options_from_json(value.get("options", {})), value["seed"], value


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in path.read_bytes().split(b"\n") if line.strip()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ArchiveError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _listed(path: Path) -> Iterator[GenerationRecord]:
    for line in _lines(path):
        try:
            yield record_from_json(json.loads(line))
        except (ValueError, RecursionError):
            continue


def _finished_directories(root: Path) -> list[GenId]:
    with os.scandir(root) as entries:
        ids = (parse_genid(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False))
        return [genid for genid in ids if genid is not None]
