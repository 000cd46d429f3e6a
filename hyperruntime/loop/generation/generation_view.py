"""The view of all generations for the agents' own parent selection and for ensembles.

The view is a directory of the host. Each finished generation adds its metadata and the figures of
the report of every evaluated split, so that nothing is copied per selection. It omits task ids,
which show the correct answers, except for the split ``train``. It also omits results of the split
``test`` and hyperruntime's own facts that a selection does not need.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from hyperruntime.domain import DomainBase
from hyperruntime.loop.evaluation.evaluator import TEST_SPLIT
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.contract import AGENT_ARCHIVE
from hyperruntime.loop.run_files.layout import (
    AGENT_OUTPUT,
    ARCHIVE_FILE,
    FIRST_SPLIT,
    META_PATCHES,
    METADATA,
    REPORT,
    Layout,
    ensemble_report,
    evaluation_name,
    generation_name,
    read_json,
)
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.storage.atomic import (
    json_document,
    json_line,
    make_directory,
    storage_errors,
    write_atomic,
    write_file,
)
from hyperruntime.storage.run_files import is_run_file, refuse_links

_PLAIN = (int, float, str, bool, type(None))
_FULL = "run_full_eval"
_OURS = "hyperruntime"
_PATHS = ("gen_output_dir", "prev_patch_files", "curr_patch_files")
_SHOWN = ("score", "failure", "started")


class AddEvaluation(Protocol):
    """Writes the view of one split of a generation."""

    def __call__(
        self, domain: DomainBase, split: str, source: Path, target: Path, *, full: bool
    ) -> None:
        """Write the view of one split.

        Args:
            domain: domain of the split.
            split: name of the split.
            source: directory of the results.
            target: directory of the view.
            full: whether all tasks were run, not only the first stage.

        Raises:
            StorageError: a file cannot be written.
        """
        ...


class GenerationView:
    """The view of a run's generations on disk.

    Attributes:
        folder: directory of the view; containers mount it read-only.
    """

    def __init__(
        self, layout: Layout, name: str, domains: tuple[DomainBase, ...], add: AddEvaluation
    ) -> None:
        """Open the view in the run directory; make its directory if it is missing.

        Args:
            layout: paths of the run.
            name: name of the view's directory.
            domains: domains whose evaluations are shown.
            add: writes the view of one split.
        """
        self.folder = make_directory(layout.root / name)
        refuse_links(self.folder)
        self._layout = layout
        self._domains = domains
        self._add = add
        self._known: dict[object, tuple[GenerationRecord, bool]] = {}
        self._listed: list[GenId] | None = None

    def refresh(self, archive: Archive) -> None:
        """Add new generations of ``archive`` and update the metadata of changed ones.

        Raises:
            StorageError: a file cannot be written.
        """
        for record in archive:
            state = (record, archive.can_select(record.genid))
            known = self._known.get(record.genid)
            if known is None or known[0] is not record or known[1] != state[1]:
                self._show(record.genid)
                self._known[record.genid] = state
        ids = [record.genid for record in archive]
        if ids != self._listed:
            write_atomic(self.folder / ARCHIVE_FILE, archive_line(ids))
            self._listed = ids

    def _show(self, genid: GenId) -> None:
        source = self._layout.generation(genid)
        target = self.folder / generation_name(genid)
        if target.is_dir():
            now = json_document(shown_metadata(read_json(source / METADATA, source.parent)))
            if json_document(read_json(target / METADATA, target.parent)) != now:
                write_atomic(target / METADATA, now)
        else:
            add_generation(self._domains, source, target, self._add)


def add_generation(
    domains: tuple[DomainBase, ...],
    source: Path,
    target: Path,
    add: AddEvaluation,
    *,
    training: bool = False,
) -> None:
    """Write the view of a finished generation; its directory appears atomically.

    Args:
        domains: domains of the run.
        source: directory of the generation.
        target: directory to write; must not exist.
        add: writes the view of one split.
        training: whether the view shows only the split ``train``, as for meta agents.

    Raises:
        StorageError: a file cannot be written.
    """
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    metadata = read_json(source / METADATA, source.parent)
    write_file(partial / METADATA, json_document(shown_metadata(metadata, training=training)))
    add_evaluations(
        domains, source, partial, add, full=metadata.get(_FULL) is True, training=training
    )
    with storage_errors(target):
        os.rename(partial, target)


def add_evaluations(
    domains: tuple[DomainBase, ...],
    source: Path,
    target: Path,
    add: AddEvaluation,
    *,
    full: bool,
    training: bool = False,
) -> None:
    """Write the view of all evaluations of a generation.

    Args:
        domains: domains of the run.
        source: directory of the generation.
        target: directory to write.
        add: writes the view of one split.
        full: whether all tasks were run, not only the first stage.
        training: whether the view shows only the split ``train``.

    Raises:
        StorageError: a file cannot be written.
    """
    for domain in domains:
        for split in domain.splits:
            name = evaluation_name(domain.name, split.name)
            if is_run_file(source / name / REPORT, below=source.parent) and (
                split.name == FIRST_SPLIT or not training
            ):
                add(domain, split.name, source / name, target / name, full=full)
            ensemble = ensemble_report(domain.name, split.name)
            if is_run_file(source / ensemble, below=source.parent) and (
                split.name == FIRST_SPLIT or not training
            ):
                write_figures(domain, split.name, source / ensemble, target / ensemble)


def archive_line(ids: Sequence[GenId]) -> bytes:
    """Return the last line of ``archive.jsonl`` as HyperAgents would write it."""
    return json_line({"archive": list(ids), "current_genid": ids[-1] if ids else None})


def shown_metadata(metadata: Mapping[str, Any], *, training: bool = False) -> dict[str, Any]:
    """Return the visible part of a generation's metadata: without the split ``test`` and failure
    messages.

    Args:
        metadata: metadata of a finished generation.
        training: whether only the split ``train`` is visible, as for meta agents.
    """
    metadata, ours = without_host_paths(metadata), metadata.get(_OURS)
    if not isinstance(ours, dict):
        return metadata
    scores = ours.get("scores")
    kept = {
        domain: {
            name: score
            for name, score in splits.items()
            if (name == FIRST_SPLIT if training else name != TEST_SPLIT)
        }
        for domain, splits in (scores if isinstance(scores, dict) else {}).items()
    }
    plain = {name: ours.get(name) for name in _SHOWN if not (training and name == "score")}
    return {**metadata, _OURS: {**plain, "scores": kept}}


def without_host_paths(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with paths relative to the run directory; HyperAgents writes absolute paths
    of its host.
    """
    shown = dict(metadata)
    for name in _PATHS:
        if isinstance(value := shown.get(name), str):
            shown[name] = _relative(value)
        elif isinstance(value, list):
            shown[name] = [_relative(str(path)) for path in value]
    if shown.get("agent_archive_path") is not None:
        shown["agent_archive_path"] = AGENT_ARCHIVE
    return shown


def _relative(path: str) -> str:
    """Return the end of an absolute path that is below the run directory."""
    parts = PurePosixPath(path).parts
    ours = 3 if AGENT_OUTPUT in parts[-2:-1] else 2 if META_PATCHES in parts[-2:-1] else 1
    return "/".join(parts[-ours:]) if path.startswith("/") else path


def shown_report(report: Mapping[str, Any], split: str, *, needs: str = "") -> dict[str, Any]:
    """Return the visible part of a report: all for the split ``train``, else only plain values.

    Args:
        report: the report.
        split: name of the split.
        needs: a key that is visible too; "" for none.
    """
    if split == FIRST_SPLIT:
        return dict(report)
    return {
        name: value for name, value in report.items() if isinstance(value, _PLAIN) or name == needs
    }


def write_figures(domain: DomainBase, split: str, source: Path, target: Path) -> None:
    """Write the visible part of a report to another path; skip the split ``test``."""
    if split != TEST_SPLIT:
        write_file(
            target,
            json_document(
                shown_report(read_json(source, source.parent.parent), split, needs=domain.needs)
            ),
        )


def add_figures(domain: DomainBase, split: str, source: Path, target: Path, *, full: bool) -> None:
    """Write a split's visible report for parent selection, see :class:`AddEvaluation`; skip the
    split ``test``.
    """
    write_figures(domain, split, source / REPORT, target / REPORT)
