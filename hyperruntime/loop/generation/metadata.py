"""``metadata.json`` of a generation, with the keys that the tools around HyperAgents read.

Its paths are relative to the run directory, so that a run can be moved. To keep lists short, every 256th generation of
a lineage stores one patch for the whole lineage up to it; its descendants list this patch instead of the single ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperruntime.loop.generation.meta_patches import meta_patch_paths
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, LINEAGE, METADATA, PATCH, generation_name, read_json
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationRecord, record_to_json
from hyperruntime.storage.atomic import write_atomic

MAX_LISTED_LINEAGE = 256


def generation_metadata(
    archive: Archive, record: GenerationRecord, options: GenerateOptions, *, has_patch: bool
) -> dict[str, Any]:
    """Return the content of ``metadata.json``: HyperAgents' keys, and the record under the key ``hyperruntime``.

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
        "prev_patch_files": meta_patch_paths(options) + patches_before(archive, record.parent),
        "curr_patch_files": [patch_path(record.genid)] if has_patch else [],
        "parent_agent_success": record.parent is None or "diff" in record.durations,  # the step after the meta agent
        "can_select_next_parent": True,
        "run_eval": record.failure is None,
    }
    if record.failure is None and not record.staged_only:
        metadata["run_full_eval"] = True
    return {**metadata, "valid_parent": record.valid_parent, "hyperruntime": record_to_json(record)}


def metadata_document(value: Mapping[str, Any]) -> bytes:
    """Return metadata as the bytes of its file: without a final line feed, as HyperAgents writes it."""
    return json.dumps(value, indent=4, allow_nan=False).encode()


def amend_metadata(folder: Path, changes: Mapping[str, Any]) -> None:
    """Change values in the metadata of a finished generation; skip a file that cannot be read.

    Args:
        folder: directory of the generation.
        changes: new values by key.

    Raises:
        StorageError: the file cannot be written.
    """
    value = read_json(folder / METADATA)
    if value and any(value.get(name) != wanted for name, wanted in changes.items()):
        write_atomic(folder / METADATA, metadata_document({**value, **changes}))


def patches_before(archive: Archive, parent: GenId | None) -> list[str]:
    """Return the paths of the patches, oldest first, that lead from the first generation to ``parent``."""
    if parent is None:
        return []
    chain, start = archive.lineage(parent, MAX_LISTED_LINEAGE)
    first = [] if start is None else [f"{generation_name(start)}/{LINEAGE}"]
    return first + [patch_path(genid) for genid in chain]


def ends_a_chapter(archive: Archive, record: GenerationRecord) -> bool:
    """Return whether a generation stores one patch for its whole lineage."""
    return record.parent is not None and (archive.depth(record.parent) + 1) % MAX_LISTED_LINEAGE == 0


def patch_path(genid: GenId) -> str:
    """Return the path of a generation's patch in the run directory."""
    return f"{generation_name(genid)}/{AGENT_OUTPUT}/{PATCH}"
