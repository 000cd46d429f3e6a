"""Read the directory of a run that HyperAgents wrote; write nothing.

``generate_loop.log`` has the options, ``archive.jsonl`` the finished generations, and each
generation has ``metadata.json`` and reports. The last line of the archive may be truncated. A
generation that no line lists was not finished; HyperAgents itself would make it again.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyperruntime.errors import ArchiveError
from hyperruntime.json_values import is_integer
from hyperruntime.loop.hyperagents.domains import DOMAINS, OriginalDomain
from hyperruntime.loop.run_files.layout import (
    AGENT_OUTPUT,
    INITIAL,
    METADATA,
    PATCH,
    RUN_LOG,
    Layout,
    ensemble_report,
    read_json,
)
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import FORMULAS, GenId
from hyperruntime.loop.run_files.record import FailureClass, GenerationRecord, genid_from_json
from hyperruntime.storage.run_files import read_run_file

WORK_TREE = "hyperagents"
REPOSITORY = f"gen_initial/{WORK_TREE}"
_ARGS = re.compile(r"Args: (.*)")
_PAIRS = re.compile(r", (?=[A-Za-z_]\w*=)")
_TAKEN = (
    "max_generation", "eval_samples", "eval_workers", "parent_selection", "run_baseline", "optimize_option",
    "eval_test", "skip_staged_eval", "edit_select_parent", "reset_task_agent", "reset_meta_agent",
    "agent_archive_path", "meta_patch_files",
)  # fmt: skip


def is_original(layout: Layout) -> bool:
    """Return whether a directory is a run of HyperAgents that was not imported yet."""
    return (
        not layout.run.exists()
        and layout.archive.is_file()
        and (layout.root / REPOSITORY / ".git").exists()
    )


def finished_ids(layout: Layout) -> list[GenId]:
    """Return the generations that the archive lists, in archive order.

    Raises:
        ArchiveError: no line lists a generation.
    """
    longest: list[GenId] = []
    for line in _content(layout, layout.archive).splitlines():
        try:
            ids = [genid_from_json(genid) for genid in json.loads(line)["archive"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        longest = ids if len(ids) > len(longest) else longest
    if not longest:
        raise ArchiveError(f"{str(layout.archive)!r} lists no generation; start a new run")
    return list(dict.fromkeys(longest))


def _content(layout: Layout, path: Path) -> bytes:
    try:
        return read_run_file(path, below=layout.root)
    except OSError as error:
        raise ArchiveError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def root_candidates(layout: Layout) -> list[str]:
    """Return the root commits in the log, that of the first start first; later starts may have used
    a patched state.
    """
    return list(
        dict.fromkeys(re.findall(r"\broot_commit=['\"]?([0-9a-f]{4,64})\b", _log_text(layout)))
    )


def _log_text(layout: Layout) -> str:
    try:
        return read_run_file(layout.root / RUN_LOG, below=layout.root).decode(errors="replace")
    except OSError:
        return ""


def original_options(layout: Layout, ids: Sequence[GenId]) -> GenerateOptions:
    """Return the options of a run from the arguments of its first start in its log; missing ones
    get their defaults.

    Args:
        layout: paths of the run.
        ids: ids of the finished generations.

    Raises:
        ArchiveError: the domains are unknown, or the logged options are invalid.
    """
    found = _ARGS.search(_log_text(layout))
    pairs = (pair.partition("=") for pair in _PAIRS.split(found[1])) if found else ()
    given = {name: _value(value) for name, _, value in pairs}
    domains = _domains(layout, given.get("domains"))
    taken = {name: given[name] for name in _TAKEN if given.get(name) is not None}
    last = max((genid for genid in ids if isinstance(genid, int)), default=0)
    known = taken.get("max_generation")
    taken["max_generation"] = max(last, known) if is_integer(known) else last
    samples = taken.pop("eval_samples", None)
    if isinstance(samples, list) and len(samples) == len(domains):
        taken["eval_samples"] = tuple(samples)
    if taken.get("parent_selection") not in FORMULAS:
        taken.pop("parent_selection", None)
    name = layout.root.name.rpartition("generate_")[2] or layout.root.name
    try:
        return GenerateOptions(
            domains=domains,
            contract="hyperagents",
            agent=REPOSITORY,
            run_id=re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:100] or None,
            **taken,
        ).settled()
    except (TypeError, ValueError) as error:
        raise ArchiveError(
            f"the options in {str(layout.root / RUN_LOG)!r} are invalid: {error}"
        ) from error


def read_generation(
    layout: Layout, genid: GenId, domains: Sequence[OriginalDomain], *, only_ensemble: bool = False
) -> GenerationRecord:
    """Return the record of a finished generation from its files, without its score and its state.

    The first generation need not have metadata.

    Args:
        layout: paths of the run.
        genid: id of the generation.
        domains: domains of the run.
        only_ensemble: whether the run evaluates only ensembles, which answer all tasks.
    """
    metadata = read_json(layout.generation(genid) / METADATA, layout.root)
    first = genid == INITIAL or metadata.get("parent_genid") is None
    staged_only = not only_ensemble and (genid == INITIAL or not metadata.get("run_full_eval"))
    failure: FailureClass | None
    if first or metadata.get("run_eval"):
        failure = None
    elif not metadata.get("parent_agent_success"):
        failure = "agent"
    else:
        failure = "evaluation" if patch_of(layout, genid).strip() else "empty-diff"
    return GenerationRecord(
        genid=genid,
        parent=None if first else genid_from_json(metadata["parent_genid"]),
        scores=_scores(
            layout, genid, domains, staged_only=staged_only, only_ensemble=only_ensemble
        ),
        valid_parent=first or bool(metadata.get("valid_parent")),
        failure=failure,
        staged_only=staged_only,
    )


def links_below(generation: Path) -> list[Path]:
    """Return the links in a generation's directory, except in the work tree that all generations
    share.

    HyperAgents unpacks the files of containers unchanged, so a link may lead to any file of the
    host.
    """
    found: list[Path] = []
    for folder, folders, names in os.walk(generation):
        if Path(folder) == generation and f"{generation.name}/{WORK_TREE}" == REPOSITORY:
            folders[:] = [name for name in folders if name != WORK_TREE]
        found += [
            path
            for path in (Path(folder, name) for name in sorted([*folders, *names]))
            if path.is_symlink()
        ]
    return found


def patch_of(layout: Layout, genid: GenId) -> bytes:
    """Return a generation's diff; empty if it cannot be read."""
    try:
        return read_run_file(layout.generation(genid) / AGENT_OUTPUT / PATCH, below=layout.root)
    except OSError:
        return b""


def _scores(
    layout: Layout,
    genid: GenId,
    domains: Sequence[OriginalDomain],
    *,
    staged_only: bool,
    only_ensemble: bool,
) -> dict[str, dict[str, float]]:
    """Return the better score of agent and ensemble per domain and split, scaled; with
    only_ensemble, its score.
    """
    scores: dict[str, dict[str, float]] = {}
    for domain in domains:
        for split in (split.name for split in domain.splits):
            folder = layout.generation(genid)
            ensemble = ensemble_report(domain.name, split)
            agent = None if only_ensemble else domain.read_score(folder / domain.evaluation(split))
            known = [
                score for score in (agent, domain.read_score(folder, ensemble)) if score is not None
            ]
            if known:
                scores.setdefault(domain.name, {})[split] = max(known) * (
                    domain.fraction if staged_only else 1.0
                )
    return scores


def _domains(layout: Layout, given: object) -> tuple[str, ...]:
    """Return the domains of a run from log and directories; HyperAgents removes polyglot from the
    list in its log.
    """
    known = [name for name in given if name in DOMAINS] if isinstance(given, (list, tuple)) else []
    first = layout.generation(INITIAL)
    there = [name for name in DOMAINS if (first / f"{name}_eval").is_dir()]
    if not known and not there:
        raise ArchiveError(
            f"the domains of {str(layout.root)!r} are unknown: neither {RUN_LOG} nor its files "
            "name one"
        )
    return tuple(dict.fromkeys((*known, *there)))


def _value(text: str) -> Any:  # noqa: ANN401 - any Python literal
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
