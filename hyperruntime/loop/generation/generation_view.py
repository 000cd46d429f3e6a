"""What the agents' own choice of a parent, and their ensembles, see of all generations.

A directory of the host that is extended by each finished generation, so that nothing is copied per choice: metadata,
and of every evaluated split the figures of its report. Ids of tasks, which say what was right, stay out, but for
training; so does what the split ``test`` gave, and of our own facts all but those that a choice needs.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hyperruntime.domain import Domain
from hyperruntime.loop.evaluation.evaluator import TEST_SPLIT
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.layout import FIRST_SPLIT, METADATA, REPORT, Layout, evaluation_name, generation_name
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.storage.atomic import (
    json_document,
    json_line,
    make_directory,
    storage_errors,
    write_atomic,
    write_file,
)

ARCHIVE_FILE = "archive.jsonl"
_PLAIN = (int, float, str, bool, type(None))
_FULL = "run_full_eval"
_OURS = "hyperruntime"
_SHOWN = ("score", "failure", "started")


class AddEvaluation(Protocol):
    """Writes what is seen of one split of a generation."""

    def __call__(self, domain: Domain, split: str, source: Path, target: Path, *, full: bool) -> None:
        """Write it.

        Args:
            domain: whose it is. split: its name. source: where the results are. target: takes what is seen.
            full: whether all tasks were run, and not those of the first stage alone.

        Raises:
            StorageError: a file cannot be written.
        """
        ...


class GenerationView:
    """The standings of a run, on disk.

    Attributes:
        folder: where they are; mounted read-only.
    """

    def __init__(self, layout: Layout, name: str, domains: tuple[Domain, ...], add: AddEvaluation) -> None:
        """Open the directory of this name in the run directory; it is made if it is missing.

        Args:
            layout: of the run. name: of the directory. domains: whose evaluations are in it.
            add: writes what is seen of one split.
        """
        self.folder = make_directory(layout.root / name)
        self._layout, self._domains, self._add = layout, domains, add
        self._known: dict[object, tuple[GenerationRecord, bool]] = {}
        self._list = _GrowingList(self.folder / ARCHIVE_FILE)

    def refresh(self, archive: Archive) -> None:
        """Add what was finished since, and say again what became known of older ones.

        Raises:
            StorageError: a file cannot be written.
        """
        for record in archive:
            state = (record, archive.can_select(record.genid))
            known = self._known.get(record.genid)
            if known is None or known[0] is not record or known[1] != state[1]:
                self._write(record)
                self._known[record.genid] = state
        self._list.show([record.genid for record in archive])

    def _write(self, record: GenerationRecord) -> None:
        name = generation_name(record.genid)
        source, target = self._layout.generation(record.genid), self.folder / name
        if target.is_dir():
            now = json_document(shown_metadata(read_json(source / METADATA)))
            if json_document(read_json(target / METADATA)) != now:
                write_atomic(target / METADATA, now)
        else:
            add_generation(self._domains, source, target, self._add)


class _GrowingList:
    """``archive.jsonl`` of the standings: one line, which is made longer in its place.

    What a kill leaves torn is written anew by the next sitting, before anybody reads it.
    """

    def __init__(self, path: Path) -> None:
        """Keep a list in ``path``; whatever is there is not believed."""
        self._path, self._listed, self._tail = path, 0, b""

    def show(self, ids: Sequence[Any]) -> None:
        """See to it that the file lists all ``ids``, which begin with those that it was told before.

        Raises:
            StorageError: it cannot be written.
        """
        fresh, tail = ids[self._listed :], _tail(ids)
        known, self._listed = self._listed, 0  # until it is written
        if not known:
            write_atomic(self._path, archive_line(list(ids)))
        elif fresh:
            more = b"".join(b", " + json.dumps(genid).encode() for genid in fresh)
            with storage_errors(self._path), open(self._path, "rb+") as file:
                file.seek(-len(self._tail), os.SEEK_END)
                file.write(more + tail)
                file.truncate()
        self._listed, self._tail = len(ids), tail


def _tail(ids: Sequence[Any]) -> bytes:
    return b'], "current_genid": ' + json.dumps(ids[-1] if ids else None).encode() + b"}\n"


def add_generation(
    domains: tuple[Domain, ...], source: Path, target: Path, add: AddEvaluation, *, training: bool = False
) -> None:
    """Write what is seen of a finished generation, in one step.

    Args:
        domains: of the run. source: the generation's directory. target: does not exist. add: writes a split.
        training: whether nothing but the training split is seen.

    Raises:
        StorageError: a file cannot be written.
    """
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    metadata = read_json(source / METADATA)
    write_file(partial / METADATA, json_document(shown_metadata(metadata, training=training)))
    add_evaluations(domains, source, partial, add, full=metadata.get(_FULL) is True)
    with storage_errors(target):
        os.rename(partial, target)


def add_evaluations(domains: tuple[Domain, ...], source: Path, target: Path, add: AddEvaluation, *, full: bool) -> None:
    """Write what is seen of all evaluations of a generation.

    Raises:
        StorageError: a file cannot be written.
    """
    for domain in domains:
        for split in domain.splits:
            name = evaluation_name(domain.name, split.name)
            if (source / name / REPORT).is_file():
                add(domain, split.name, source / name, target / name, full=full)


def archive_line(ids: list[Any]) -> bytes:
    """Return the last line that ``archive.jsonl`` of the original would have."""
    return json_line({"archive": ids, "current_genid": ids[-1] if ids else None})


def read_json(path: Path) -> dict[str, Any]:
    """Return what a file of a finished generation says; nothing where it cannot be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def shown_metadata(metadata: Mapping[str, Any], *, training: bool = False) -> dict[str, Any]:
    """Return what is seen of a generation's metadata: nothing of the split ``test``, and no words of a failure.

    Args:
        metadata: of a finished generation. training: whether nothing but the training split is seen, as by meta agents.
    """
    ours = metadata.get(_OURS)
    if not isinstance(ours, dict):
        return dict(metadata)
    scores = ours.get("scores")
    kept = {
        domain: {name: score for name, score in splits.items() if _is_shown(name, training=training)}
        for domain, splits in (scores if isinstance(scores, dict) else {}).items()
    }
    plain = {name: ours.get(name) for name in _SHOWN if not (training and name == "score")}
    return {**metadata, _OURS: {**plain, "scores": kept}}


def _is_shown(split: str, *, training: bool) -> bool:
    return split == FIRST_SPLIT if training else split != TEST_SPLIT


def shown_report(report: Mapping[str, Any], split: str, *, needs: str = "") -> dict[str, Any]:
    """Return what is seen of a report: all of a training one, only the plain figures of another."""
    if split == FIRST_SPLIT:
        return dict(report)
    return {name: value for name, value in report.items() if isinstance(value, _PLAIN) or name == needs}


def add_figures(domain: Domain, split: str, source: Path, target: Path, *, full: bool) -> None:
    """Write the figures of one split, for the choice of a parent: never of the split ``test``."""
    if split != TEST_SPLIT:
        needs = getattr(getattr(domain, "original", None), "needs", "")
        write_file(target / REPORT, json_document(shown_report(read_json(source / REPORT), split, needs=needs)))
