"""Make a finished generation part of the run: its files, its line, what successors see. Imports archive and layout.

The order is what makes a kill harmless: all files durable, the directory renamed, the line appended, the view
extended. Whatever is missing after a kill is made up for when the run is opened again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from hyperruntime.domain import Domain
from hyperruntime.loop.archive import Archive
from hyperruntime.loop.evaluation import HISTORY_FOLDER
from hyperruntime.loop.layout import (
    AGENT_OUTPUT,
    FIRST_SPLIT,
    INITIAL,
    METADATA,
    PATCH,
    PREDICTIONS,
    REPORT,
    Layout,
    evaluation_name,
    generation_name,
)
from hyperruntime.loop.record import GenerationRecord, record_to_json
from hyperruntime.loop.selection import GenId
from hyperruntime.loop.storage import finish_directory, json_document, storage_errors, write_file

MAX_LISTED_LINEAGE = 100
_PRIVATE_FAILURES = ("evaluation", "timeout", "infrastructure")


def finish_generation(layout: Layout, archive: Archive, record: GenerationRecord, domains: tuple[Domain, ...]) -> None:
    """Give a generation's directory its final name and put it in the archive and the view.

    Raises:
        StorageError: something cannot be written; the run can be resumed.
    """
    partial = layout.partial(record.genid)
    write_file(partial / METADATA, json_document(_metadata(archive, record, partial)))
    finish_directory(partial, layout.generation(record.genid))
    archive.add(record)
    publish(layout, record, domains)


def publish(layout: Layout, record: GenerationRecord, domains: tuple[Domain, ...]) -> None:
    """Show a generation to the meta agents of later ones: its patch, its notes, what it did in training.

    Results of other splits, and whatever could tell them, stay out.

    Raises:
        StorageError: it cannot be written.
    """
    source, name = layout.generation(record.genid), generation_name(record.genid)
    target, partial = layout.view / name, layout.work / f"{name}.view"
    if target.exists():
        return
    shutil.rmtree(partial, ignore_errors=True)
    write_file(partial / METADATA, json_document(_shown_metadata(record)))
    with storage_errors(partial):
        if (source / AGENT_OUTPUT).is_dir():
            _link_tree(source / AGENT_OUTPUT, partial / AGENT_OUTPUT)
        for domain in domains:
            evaluation = evaluation_name(domain.name, FIRST_SPLIT)
            for part in (PREDICTIONS, REPORT, HISTORY_FOLDER):
                if (source / evaluation / part).exists():
                    _link_tree(source / evaluation / part, partial / evaluation / part)
        os.rename(partial, target)


def publish_missing(layout: Layout, archive: Archive, domains: tuple[Domain, ...]) -> None:
    """Show what was finished and not yet shown when a run was killed.

    Raises:
        StorageError: it cannot be written.
    """
    shown = set(os.listdir(layout.view))
    for record in archive:
        if generation_name(record.genid) not in shown and layout.generation(record.genid).is_dir():
            publish(layout, record, domains)


def _metadata(archive: Archive, record: GenerationRecord, partial: Path) -> dict[str, Any]:
    """Return a generation's metadata: the keys that readers of such runs know, and all of ours under our name."""
    before = [] if record.parent is None else archive.lineage(record.parent, MAX_LISTED_LINEAGE)
    has_patch = (partial / AGENT_OUTPUT / PATCH).is_file()
    evaluated = any(record.scores.values())
    metadata: dict[str, Any] = {
        "gen_output_dir": generation_name(record.genid),
        "current_genid": record.genid,
        "parent_genid": record.parent,
        "run_baseline": None,
        "optimize_option": "only_agent",
        "agent_archive_path": None,
        "prev_patch_files": None if before is None else [_patch_path(genid) for genid in before],
        "curr_patch_files": [_patch_path(record.genid)] if has_patch else [],
        "parent_agent_success": "diff" in record.durations,  # the step after the meta agent ended well
        "can_select_next_parent": record.valid_parent,
        "run_eval": evaluated,
    }
    if evaluated and record.failure is None and not record.staged_only:
        metadata["run_full_eval"] = True
    return {**metadata, "valid_parent": record.valid_parent, "hyperruntime": record_to_json(record)}


def _shown_metadata(record: GenerationRecord) -> dict[str, Any]:
    scores = {
        domain: {FIRST_SPLIT: splits[FIRST_SPLIT]} for domain, splits in record.scores.items() if FIRST_SPLIT in splits
    }
    values = [splits[FIRST_SPLIT] for splits in scores.values()]
    return {
        "current_genid": record.genid,
        "parent_genid": record.parent,
        "curr_patch_files": [] if record.genid == INITIAL else [_patch_path(record.genid)],
        "valid_parent": record.valid_parent,
        "hyperruntime": {
            "score": sum(values) / len(values) if values else None,
            "scores": scores,
            "failure": record.failure,
            "detail": "" if record.failure in _PRIVATE_FAILURES else record.detail,
            "started": record.started,
        },
    }


def _patch_path(genid: GenId) -> str:
    return f"{generation_name(genid)}/{AGENT_OUTPUT}/{PATCH}"


def _link_tree(source: Path, target: Path) -> None:
    """Make files appear at a second place, by hard links where the file system has them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link)
    else:
        _link(str(source), str(target))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
