"""Fill a new run directory, or open an existing one."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

import attrs

from hyperruntime.domain import Domain
from hyperruntime.errors import RepositoryError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.logs import get_logger
from hyperruntime.loop.generation.adapter import ContractAdapter
from hyperruntime.loop.generation.meta_patches import Start, begin, stored_start
from hyperruntime.loop.generation.phases import unfinished
from hyperruntime.loop.generation.publish import amend_marked, publish_missing
from hyperruntime.loop.run.adapters import contract_adapter
from hyperruntime.loop.run.plan import RunPlan, check_agent, load_domains, settled_references
from hyperruntime.loop.run_files.archive import Archive, read_run
from hyperruntime.loop.run_files.contract import (
    Contract,
    contract_from_json,
)
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, PATCH, Layout
from hyperruntime.loop.run_files.options import GenerateOptions, options_to_json
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import SCHEMA
from hyperruntime.loop.run_files.run_log import log_args
from hyperruntime.loop.workbench.context import protected_paths
from hyperruntime.loop.workbench.gateway_choice import agent_directory
from hyperruntime.reclaim.trees import remove_reclaimed
from hyperruntime.storage.atomic import (
    json_document,
    make_directory,
    make_private_directory,
    storage_errors,
    write_atomic,
)

log = get_logger(__name__)

_DOMAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@attrs.frozen(kw_only=True)
class OpenedRun:
    """A run whose directory this process owns.

    Attributes:
        options: options of the run, with seed and run id.
        layout: paths of the run.
        store: repository with all states.
        contract: contract of the agent.
        adapter: adapter for the kind of contract.
        root: commit of the initial agent.
        start: the first generation: the initial agent with the start diffs applied.
        domains: domains of the evaluation.
        archive: the finished generations.
    """

    options: GenerateOptions
    layout: Layout
    store: RepositoryStore
    contract: Contract
    adapter: ContractAdapter
    root: str
    start: Start
    domains: tuple[Domain, ...]
    archive: Archive


def create_run(plan: RunPlan) -> OpenedRun:
    """Fill a new run directory that this process owns; remove the directory on an error.

    Raises:
        AgentError: the agent cannot be used.
        RepositoryError: the agent's repository cannot be used.
        StorageError: a file cannot be written.
    """
    try:
        return _fill(plan)
    except BaseException:
        shutil.rmtree(plan.layout.root, ignore_errors=True)
        raise


def _fill(plan: RunPlan) -> OpenedRun:
    options, layout, domains, adapter = plan.options, plan.layout, plan.domains, plan.adapter
    make_directory(layout.view)
    make_private_directory(layout.work)
    store = RepositoryStore(layout.repository)
    root, contract = adapter.prepare(options, domains, layout, store, check_agent(options, domains, adapter))
    protected = protected_paths(domains)
    start = begin(store, root, options, layout, contract=contract, protected=protected, fuzz=adapter.patch_fuzz)
    stored = {
        "schema": SCHEMA,
        "seed": options.seed,
        "root_commit": root,
        "start": {"genid": start.genid, "commit": start.commit},
        "agent": str(agent_directory(plan.agent) or plan.agent),
        "gateway": plan.gateway is not None,
        "contract": attrs.asdict(contract),
        "options": options_to_json(attrs.evolve(options, domains=settled_references(options.domains))),
    }
    write_atomic(layout.run, json_document(stored))
    log_args(layout, options, root, start.notes)
    return OpenedRun(
        options=options,
        layout=layout,
        store=store,
        contract=contract,
        adapter=adapter,
        root=root,
        start=start,
        domains=domains,
        archive=Archive(layout),
    )


def reopen_run(layout: Layout, options: GenerateOptions, reclaim_args: Sequence[str]) -> OpenedRun:
    """Open an existing run whose directory this process owns, and complete the steps that a kill left out.

    Args:
        layout: paths of the run.
        options: the new options; changed options are stored.
        reclaim_args: see :class:`~hyperruntime.driver.EngineInfo`; used to remove files of containers.

    Raises:
        ArchiveError: the directory is not a run directory.
        DomainNotFoundError: a domain of the run is no longer installed.
        StorageError: a file cannot be written.
    """
    stored_options, _, stored = read_run(layout)
    adapter = contract_adapter(options.contract)
    domains = load_domains(options.domains, adapter)
    archive = Archive.load(layout)
    make_directory(layout.view)
    tighten(layout)
    _clear_work(layout, archive, reclaim_args)
    if options != stored_options:
        write_atomic(layout.run, json_document({**stored, "options": options_to_json(options)}))
    store = RepositoryStore(layout.repository)
    store.recover()
    archive.repair()
    log_args(layout, options, stored["root_commit"])
    amend_marked(layout, archive)
    publish_missing(layout, archive, domains, adapter)
    return OpenedRun(
        options=options,
        layout=layout,
        store=store,
        contract=contract_from_json(stored["contract"]),
        adapter=adapter,
        root=stored["root_commit"],
        start=stored_start(stored),
        domains=domains,
        archive=archive,
    )


def tighten(layout: Layout) -> None:
    """Close the private directories of a run to other users; earlier versions left them open.

    Raises:
        StorageError: a directory belongs to another user.
    """
    left = layout.evaluations.glob(".*.partial*") if layout.evaluations.is_dir() else ()
    for folder in (layout.work, layout.repository, *left):
        make_private_directory(folder)


def _clear_work(layout: Layout, archive: Archive, reclaim_args: Sequence[str]) -> None:
    """Remove work files of generations that are finished or must restart."""
    kept = {name for name, genid in unfinished(layout).items() if genid not in archive}
    for name in os.listdir(layout.work):
        path = layout.work / name
        if name not in kept:
            remove_reclaimed(path, reclaim_args) if path.is_dir() else path.unlink(missing_ok=True)


def commit_of(run: OpenedRun, genid: GenId) -> str:
    """Return the commit of a generation's state; rebuild a lost state from the patches of its lineage.

    Args:
        run: the run.
        genid: id of the generation; an unknown id gives the first generation's state.

    Raises:
        PatchError: a patch does not apply, so the state cannot be rebuilt.
        RepositoryError: the state cannot be stored.
        StorageError: a patch cannot be read.
    """
    if genid not in run.archive:
        return run.start.commit
    record = run.archive[genid]
    try:
        run.store.tree(record.commit)
        return record.commit
    except RepositoryError:
        log.warning("state made again from its patches", generation=genid)
    if record.parent is None:
        return run.start.commit
    path = run.layout.generation(genid) / AGENT_OUTPUT / PATCH
    with storage_errors(path):
        patch = path.read_bytes() if path.is_file() else b""
    return run.store.apply_patch(commit_of(run, record.parent), patch, genid, max_file_bytes=sys.maxsize).commit
