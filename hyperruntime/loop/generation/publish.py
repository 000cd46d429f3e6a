"""Make a finished generation part of the run: its files, its journal line, its view, and who may be
a parent.

The order makes a kill harmless: sync all files, rename the directory, append the line, extend the
view. Steps that are missing after a kill are done when the run is opened again.

``metadata.json`` has the keys that the tools around HyperAgents read. Its paths are relative to the
run directory, so that a run can be moved. To keep lists short, every 256th generation of a lineage
stores one patch for the whole lineage up to it; its descendants list this patch instead of the
single ones.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hyperruntime.domain import DomainBase
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.evaluation.evaluator import mean_score
from hyperruntime.loop.generation.adapter import ContractAdapter, RunContext
from hyperruntime.loop.generation.generation_view import without_host_paths
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.layout import (
    AGENT_FILES,
    AGENT_OUTPUT,
    FIRST_SPLIT,
    LINEAGE,
    METADATA,
    PATCH,
    Layout,
    evaluation_name,
    generation_name,
    generations_in,
    read_json,
)
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import (
    GenerationMark,
    GenerationRecord,
    MarkKind,
    record_to_json,
)
from hyperruntime.storage.atomic import (
    finish_directory,
    json_document,
    storage_errors,
    write_atomic,
    write_file,
)
from hyperruntime.storage.run_files import is_run_directory, is_run_file

MAX_LISTED_LINEAGE = 256
_AFTER_THE_META_AGENT = "diff"
_BLAMED = ("agent", "timeout")
_PRIVATE_FAILURES = ("evaluation", "timeout", "infrastructure")
_MARKED: Mapping[MarkKind, Mapping[str, bool]] = MappingProxyType(
    {"no-parent": {"valid_parent": False}, "no-selection": {"can_select_next_parent": False}}
)


def parent_mark(rule: str, archive: Archive, record: GenerationRecord) -> GenerationMark | None:
    """Return the mark that a finished generation causes for its parent, or None.

    With the rule ``hyperagents``, a generation may become a parent until the meta agent of one of
    its children fails; the first generation always may. A child's failure because of the
    infrastructure or a budget has no effect.

    Args:
        rule: one of ``VALID_PARENT_RULES``.
        archive: the finished generations.
        record: the finished generation.
    """
    if rule != "hyperagents" or record.parent is None or record.parent not in archive:
        return None
    parent = archive[record.parent]
    meta_agent_failed = record.failure in _BLAMED and _AFTER_THE_META_AGENT not in record.durations
    if not meta_agent_failed or parent.parent is None or not parent.valid_parent:
        return None
    return GenerationMark(
        kind="no-parent", genid=parent.genid, by=record.genid, detail=record.detail
    )


def finish_generation(context: RunContext, archive: Archive, record: GenerationRecord) -> None:
    """Give a generation's directory its final name and add it to the archive and the view.

    Args:
        context: context of the run.
        archive: the finished generations.
        record: record of the generation.

    Raises:
        StorageError: a file cannot be written; the run can be resumed.
    """
    layout = context.layout
    partial = layout.partial(record.genid)
    has_patch = (partial / AGENT_OUTPUT / PATCH).is_file()
    metadata = generation_metadata(archive, record, context.options, has_patch=has_patch)
    write_file(partial / METADATA, metadata_document(metadata))
    if record.failure is None and stores_lineage_patch(archive, record):
        write_file(
            partial / LINEAGE, context.store.patch_between(archive.first.commit, record.commit)
        )
    finish_directory(partial, layout.generation(record.genid))
    archive.add(record)
    publish(layout, record, context.domains, context.adapter, context.store)
    layout.phases(record.genid).unlink(missing_ok=True)


def generation_metadata(
    archive: Archive, record: GenerationRecord, options: GenerateOptions, *, has_patch: bool
) -> dict[str, Any]:
    """Return the content of ``metadata.json``: HyperAgents' keys, and the record under the key
    ``hyperruntime``.

    Args:
        archive: the generations before this one.
        record: record of the generation.
        options: options of the run.
        has_patch: whether the generation has a patch file.
    """
    metadata: dict[str, Any] = {
        "gen_output_dir": generation_name(record.genid),
        "current_genid": record.genid,
        "parent_genid": record.parent,
        "run_baseline": options.run_baseline,
        "optimize_option": options.optimize_option,
        "agent_archive_path": options.agent_archive_path,
        "prev_patch_files": options.meta_patch_paths + patches_before(archive, record.parent),
        "curr_patch_files": [patch_path(record.genid)] if has_patch else [],
        "parent_agent_success": record.parent is None or _AFTER_THE_META_AGENT in record.durations,
        "can_select_next_parent": True,
        "run_eval": record.failure is None,
    }
    if (
        record.failure is None
        and not record.staged_only
        and options.optimize_option != "only_ensemble"
    ):
        metadata["run_full_eval"] = True  # of the agent
    return {**metadata, "valid_parent": record.valid_parent, "hyperruntime": record_to_json(record)}


def metadata_document(value: Mapping[str, Any]) -> bytes:
    """Return metadata as the bytes of its file: without a final line feed, as HyperAgents writes
    it.
    """
    return json.dumps(value, indent=4, allow_nan=False).encode()


def amend_metadata(folder: Path, changes: Mapping[str, Any]) -> None:
    """Change values in the metadata of a finished generation; skip a file that cannot be read.

    Args:
        folder: directory of the generation.
        changes: new values by key.

    Raises:
        StorageError: the file cannot be written.
    """
    value = read_json(folder / METADATA, folder.parent)
    if value and any(value.get(name) != wanted for name, wanted in changes.items()):
        write_atomic(folder / METADATA, metadata_document({**value, **changes}))


def patches_before(archive: Archive, parent: GenId | None) -> list[str]:
    """Return the paths of the patches, oldest first, that lead from the first generation to
    ``parent``.
    """
    if parent is None:
        return []
    chain, start = archive.lineage(parent, MAX_LISTED_LINEAGE)
    first = [] if start is None else [f"{generation_name(start)}/{LINEAGE}"]
    return first + [patch_path(genid) for genid in chain]


def stores_lineage_patch(archive: Archive, record: GenerationRecord) -> bool:
    """Return whether a generation stores one patch for its whole lineage."""
    return (
        record.parent is not None and (archive.depth(record.parent) + 1) % MAX_LISTED_LINEAGE == 0
    )


def patch_path(genid: GenId) -> str:
    """Return the path of a generation's patch in the run directory."""
    return f"{generation_name(genid)}/{AGENT_OUTPUT}/{PATCH}"


def mark_generation(context: RunContext, archive: Archive, mark: GenerationMark) -> None:
    """Store a mark in the journal and then in the metadata of its generation.

    Args:
        context: context of the run.
        archive: the finished generations.
        mark: the mark.

    Raises:
        StorageError: a file cannot be written.
        ArchiveError: the generation is not in the archive.
    """
    archive.mark(mark)
    amend_metadata(context.layout.generation(mark.genid), _MARKED[mark.kind])


def amend_marked(layout: Layout, archive: Archive) -> None:
    """Write all marks to the metadata again; a kill may have left some out.

    Raises:
        StorageError: a file cannot be written.
    """
    for mark in archive.marks:
        amend_metadata(layout.generation(mark.genid), _MARKED[mark.kind])


def publish(
    layout: Layout,
    record: GenerationRecord,
    domains: tuple[DomainBase, ...],
    adapter: ContractAdapter,
    store: RepositoryStore,
) -> None:
    """Add a generation to the view of later meta agents: its patch, its outputs and its results on
    ``train``.

    Results of other splits, and files that could reveal them, are left out. The first generation is
    shown with its files, because the repository of a meta agent has no history: with the patches
    they give every other state.

    Args:
        layout: paths of the run.
        record: record of the generation.
        domains: domains of the run.
        adapter: adapter for the contract.
        store: store of the run.

    Raises:
        RepositoryError: the first generation's state is missing from the store.
        StorageError: a file cannot be written.
    """
    source = layout.generation(record.genid)
    name = generation_name(record.genid)
    target = layout.view / name
    partial = layout.work / f"{name}.view"
    if not target.exists():
        shutil.rmtree(partial, ignore_errors=True)
        metadata = {
            **without_host_paths(read_json(source / METADATA, layout.root)),
            **_shown_metadata(record),
        }
        write_file(partial / METADATA, json_document(metadata))
        with storage_errors(partial):
            link_tree(source / AGENT_OUTPUT, partial / AGENT_OUTPUT, below=layout.root)
            for domain in domains:
                evaluation = evaluation_name(domain.name, FIRST_SPLIT)
                adapter.publish_evaluation(domain, source / evaluation, partial / evaluation)
            os.rename(partial, target)
    if record.parent is None and not (target / AGENT_FILES).exists():
        shutil.rmtree(partial, ignore_errors=True)
        store.export(record.commit, partial)
        with storage_errors(partial):
            partial.chmod(0o700)  # as the repositories of the run
            os.rename(partial, target / AGENT_FILES)


def publish_missing(
    layout: Layout,
    archive: Archive,
    domains: tuple[DomainBase, ...],
    adapter: ContractAdapter,
    store: RepositoryStore,
) -> None:
    """Add the finished generations that a killed run did not add to the view.

    Args:
        layout: paths of the run.
        archive: the finished generations.
        domains: domains of the run.
        adapter: adapter for the contract.
        store: store of the run.

    Raises:
        RepositoryError: the first generation's state is missing from the store.
        StorageError: a file cannot be written.
    """
    shown = set(generations_in(layout.view))
    for record in archive:
        if (record.genid not in shown or record.parent is None) and layout.generation(
            record.genid
        ).is_dir():
            publish(layout, record, domains, adapter, store)


def _shown_metadata(record: GenerationRecord) -> dict[str, Any]:
    """Return values that replace metadata which agents may not see, or which HyperAgents may not
    have written.
    """
    scores = {
        domain: {FIRST_SPLIT: splits[FIRST_SPLIT]}
        for domain, splits in record.scores.items()
        if FIRST_SPLIT in splits
    }
    return {
        "current_genid": record.genid,
        "parent_genid": record.parent,
        "curr_patch_files": [] if record.parent is None else [patch_path(record.genid)],
        "valid_parent": record.valid_parent,
        "hyperruntime": {
            "score": mean_score([splits[FIRST_SPLIT] for splits in scores.values()]),
            "scores": scores,
            "failure": record.failure,
            "detail": "" if record.failure in _PRIVATE_FAILURES else record.detail,
            "started": record.started,
        },
    }


def link_tree(source: Path, target: Path, *, below: Path) -> None:
    """Link a file or a tree to a second path; copy files where hard links are not possible.

    Symbolic links, which could lead to any file of the host, and special files are skipped.

    Args:
        source: the file or the tree; nothing is done if it is missing.
        target: the second path; must not exist.
        below: directory that ``source`` is below; a symbolic link on the way is not followed.
    """
    if is_run_file(source, below=below):
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(str(source), str(target))
    elif is_run_directory(source, below=below):
        shutil.copytree(source, target, copy_function=link_or_copy, ignore=special_entries)


def special_entries(folder: str, names: Sequence[str]) -> list[str]:
    """Return the names in a directory that are neither regular files nor directories, for
    :func:`shutil.copytree`.
    """
    found = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return [name for name, mode in found.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))]


def link_or_copy(source: str, target: str) -> None:
    """Hard-link a file to a second path; copy it if that is not possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
