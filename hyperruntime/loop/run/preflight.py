"""Make a run directory, or open one again."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from hyperruntime import registry
from hyperruntime.agents import template_names, template_path
from hyperruntime.domain import SPLITS, Domain
from hyperruntime.errors import AgentError, RepositoryError, RunError, SpecError
from hyperruntime.git.store import RepositoryStore, inspect_repository
from hyperruntime.images.recipes import BASE
from hyperruntime.logs import get_logger
from hyperruntime.loop.generation.meta_patches import Start, begin, read_meta_patches, stored_start
from hyperruntime.loop.generation.phases import unfinished
from hyperruntime.loop.generation.publish import amend_marked, publish_missing
from hyperruntime.loop.hyperagents.ensemble import check_ensembles, prepare_agent_archive
from hyperruntime.loop.hyperagents.initial import check_checkout, make_root
from hyperruntime.loop.hyperagents.repository_domain import original_of, repository_domain
from hyperruntime.loop.run_files.archive import Archive, read_run
from hyperruntime.loop.run_files.contract import (
    CONTRACT_FILE,
    Contract,
    contract_from_json,
    parse_contract,
    repository_contract,
)
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, INITIAL, PATCH, PREFIX, Layout
from hyperruntime.loop.run_files.options import GenerateOptions, options_to_json
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import SCHEMA
from hyperruntime.loop.run_files.run_log import log_args
from hyperruntime.loop.workbench.agent_needs import agent_needs
from hyperruntime.loop.workbench.context import protected_paths
from hyperruntime.loop.workbench.gateway_choice import agent_directory
from hyperruntime.reclaim.trees import remove_reclaimed
from hyperruntime.storage.atomic import json_document, make_directory, make_private_directory, write_atomic
from hyperruntime.storage.run_lock import is_unowned_remnant, owner_state

log = get_logger(__name__)

_DOMAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@attrs.frozen(kw_only=True)
class OpenedRun:
    """A run whose directory is ours.

    Attributes:
        options: with seed and run id.
        layout: where its files are.
        store: the states.
        contract: what the agent offers.
        root: the commit of the initial agent.
        start: the first generation: the initial agent, or what diffs have made of it.
        domains: what it is evaluated on.
        archive: what is finished.
    """

    options: GenerateOptions
    layout: Layout
    store: RepositoryStore
    contract: Contract
    root: str
    start: Start
    domains: tuple[Domain, ...]
    archive: Archive


def load_domains(names: Sequence[str], contract: str | None = None) -> tuple[Domain, ...]:
    """Return the domains, by ``NAME`` or ``NAME:ARGUMENT``; with the hyperagents contract, the repository's own.

    Raises:
        DomainNotFoundError: one is not installed.
        DriverLoadError: one cannot be loaded.
        SpecError: two of them go by one name, or one by a name that is none.
    """
    load = repository_domain if contract == "hyperagents" else registry.load_domain
    domains: tuple[Domain, ...] = tuple(load(name) for name in names)
    known: set[str] = set()
    for domain in domains:
        if not _DOMAIN_NAME.fullmatch(domain.name) or domain.name in known:
            raise SpecError("domains", domain.name, "names of letters, digits, '.', '_' and '-', each once")
        known.add(domain.name)
    return domains


def check_tasks(options: GenerateOptions, domains: Sequence[Domain]) -> None:
    """Have each domain read what it reads while nothing is made yet; a repository's own are read by its harness.

    Args:
        options: have the references of the domains, for whom to blame.
        domains: what they were loaded as.

    Raises:
        DriverLoadError: the code of one is broken.
        HyperRuntimeError: one cannot be used, or has nothing to ask.
    """
    if options.contract == "hyperagents":
        return
    for name, domain in zip(options.domains, domains, strict=True):
        with registry.blaming(registry.DOMAINS, name.partition(":")[0]):
            _check_splits(domain)


def _check_splits(domain: Domain) -> None:
    names = [split.name for split in domain.splits]
    if SPLITS[0] not in names or len(set(names)) != len(names):
        raise SpecError("splits", tuple(names), f"{SPLITS[0]}, and others, each once, in the domain {domain.name!r}")
    for name in names:
        if not domain.tasks(name, 1):
            raise SpecError("splits", name, f"at least one task in every split of the domain {domain.name!r}")


def settled_references(names: Sequence[str]) -> tuple[str, ...]:
    """Return references that mean the same from any directory: an argument that is a path is made absolute."""
    parts = (name.partition(":") for name in names)
    return tuple(
        f"{name}:{os.path.abspath(argument)}" if colon and os.path.exists(argument) else name + colon + argument
        for name, colon, argument in parts
    )


def choose_image(options: GenerateOptions, domains: Sequence[Domain]) -> str:
    """Return the image that all containers of a run use: what the user names, else what domains and agent need.

    Raises:
        SpecError: the domains name different ones and the user none.
        AgentError: the agent's contract cannot be read.
    """
    if options.image is not None:
        return options.image
    named = {domain.image for domain in domains}
    if len(named) > 1:
        raise SpecError("image", None, f"name one, because the domains name several: {', '.join(sorted(named))}")
    own = agent_needs(options.agent or domains[0].agent).image if named == {BASE} else None
    return own or domains[0].image


def choose_directory(options: GenerateOptions) -> Path:
    """Return where the run's directory goes; what a killed start left there is removed.

    Raises:
        RunError: there is something already.
    """
    path = Path(options.output_dir_parent).absolute() / f"{PREFIX}{options.run_id}"
    layout = Layout(path)
    known, begun = layout.run.is_file(), layout.journal.exists() or layout.generation(INITIAL).exists()
    if not known and not begun and (owner_state(path) == "dead" or is_unowned_remnant(path)):
        shutil.rmtree(path, ignore_errors=True)  # of a start that was killed before there was a run
    if os.path.lexists(path):
        step = f"go on with it by `hyperrun resume {shlex.quote(str(path))}`, or" if known else "remove it, or"
        raise RunError(f"run directory {str(path)!r} exists already; {step} give another --run-id")
    return path


def check_agent(options: GenerateOptions, domains: Sequence[Domain]) -> str:
    """Return the agent's path or template name, before anything is made.

    Raises:
        RepositoryError: it is no git repository, has no commit, or is dirty.
        AgentError: it is neither a directory nor a shipped template.
    """
    agent = options.agent or domains[0].agent
    read_meta_patches(options)
    if options.copy_root_dir is not None and not os.path.isdir(options.copy_root_dir):
        raise AgentError(f"--copy-root-dir: {options.copy_root_dir!r} is no directory; give one with the agent's files")
    if options.contract == "hyperagents":
        check_ensembles(options, domains)
        return check_checkout(agent)
    if options.copy_root_dir is not None:
        return _check_root_directory(options.copy_root_dir, options.agent)
    if agent in template_names() and os.sep not in agent:
        return agent
    if not os.path.isdir(agent):
        if os.sep in agent or agent.startswith("."):
            raise AgentError(f"agent repository {agent!r} is no directory; give the path of a git repository")
        template_path(agent)
    inspect_repository(agent)
    return agent


def _check_root_directory(path: str, agent: str | None) -> str:
    """Return the directory that the initial agent is copied from, once it is sure that it can be."""
    if agent is not None:
        raise SpecError("copy_root_dir", path, f"the agent is given as {agent!r} already; leave one of them out")
    if os.path.lexists(os.path.join(path, ".git")):
        inspect_repository(path)
    return path


def create_run(
    options: GenerateOptions, domains: tuple[Domain, ...], layout: Layout, *, gateway: bool = False
) -> OpenedRun:
    """Fill a run directory that was just made and is ours; it is removed again where that fails.

    Raises:
        AgentError, RepositoryError: the agent cannot be used.
        StorageError: a file cannot be written.
    """
    try:
        return _fill(options, domains, layout, gateway=gateway)
    except BaseException:
        shutil.rmtree(layout.root, ignore_errors=True)
        raise


def _fill(options: GenerateOptions, domains: tuple[Domain, ...], layout: Layout, *, gateway: bool) -> OpenedRun:
    make_directory(layout.view)
    make_private_directory(layout.work)
    store, agent = RepositoryStore(layout.repository), check_agent(options, domains)
    if options.contract == "hyperagents":
        originals = [original_of(domain) for domain in domains]
        root = make_root(options, originals, layout, store, agent)
        contract = repository_contract(str(options.run_id))
        prepare_agent_archive(options, domains, layout)
    else:
        root = _add_agent(store, options, agent)
        contract = parse_contract(store.read_file(root, CONTRACT_FILE))
    check_options_of(contract, options)
    start = begin(store, root, options, layout, contract=contract, protected=protected_paths(domains))
    stored = {
        "schema": SCHEMA,
        "seed": options.seed,
        "root_commit": root,
        "start": {"genid": start.genid, "commit": start.commit},
        "agent": str(agent_directory(agent) or agent),
        "gateway": gateway,
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
        root=root,
        start=start,
        domains=domains,
        archive=Archive(layout),
    )


def _add_agent(store: RepositoryStore, options: GenerateOptions, agent: str) -> str:
    """Put the initial agent into the store and return its commit."""
    if options.copy_root_dir is not None:
        top = os.path.lexists(os.path.join(options.copy_root_dir, ".git"))
        return store.add_repository(options.copy_root_dir) if top else store.from_directory(options.copy_root_dir)
    shipped = agent in template_names()
    return store.from_directory(template_path(agent)) if shipped else store.add_repository(agent)


def check_options_of(contract: Contract, options: GenerateOptions) -> None:
    """Refuse what an agent's contract does not offer.

    Raises:
        AgentError: it is asked for.
    """
    if contract.kind == "hyperagents":
        return
    if options.edit_select_parent and not contract.select_parent:
        raise AgentError(f"--edit-select-parent needs [commands] select_parent in the agent's {CONTRACT_FILE}")
    if options.run_baseline is not None and options.run_baseline.startswith("dgm"):
        raise AgentError("the baselines dgm and dgm_custom need an agent of the hyperagents contract")
    if options.optimize_option != "only_agent":
        raise AgentError("ensembles need an agent of the hyperagents contract")


def reopen_run(layout: Layout, options: GenerateOptions, reclaim_args: Sequence[str]) -> OpenedRun:
    """Open a run again whose directory is ours, with options that may have changed; make up for what a kill left.

    Args:
        layout: of the run. options: what is asked for now.
        reclaim_args: of :class:`~hyperruntime.driver.EngineInfo`, to remove what containers wrote.

    Raises:
        ArchiveError: the directory is no run.
        DomainNotFoundError: a domain of it is not installed any more.
        StorageError: a file cannot be written.
    """
    stored_options, _, stored = read_run(layout)
    domains = load_domains(options.domains, options.contract)
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
    publish_missing(layout, archive, domains)
    return OpenedRun(
        options=options,
        layout=layout,
        store=store,
        contract=contract_from_json(stored["contract"]),
        root=stored["root_commit"],
        start=stored_start(stored),
        domains=domains,
        archive=archive,
    )


def tighten(layout: Layout) -> None:
    """Close the private directories of a run to other accounts: those of earlier versions were open to all.

    Raises:
        StorageError: one is another user's.
    """
    left = layout.evaluations.glob(".*.partial*") if layout.evaluations.is_dir() else ()
    for folder in (layout.work, layout.repository, *left):
        make_private_directory(folder)


def _clear_work(layout: Layout, archive: Archive, reclaim_args: Sequence[str]) -> None:
    """Remove what is left of generations that are finished or must be made from their beginning."""
    kept = {name for name, genid in unfinished(layout).items() if genid not in archive}
    for name in os.listdir(layout.work):
        path = layout.work / name
        if name not in kept:
            remove_reclaimed(path, reclaim_args) if path.is_dir() else path.unlink(missing_ok=True)


def commit_of(run: OpenedRun, genid: GenId) -> str:
    """Return the state of a generation; one that a power failure lost is made again from the patches.

    Raises:
        PatchError, RepositoryError: it cannot be made again.
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
    patch = path.read_bytes() if path.is_file() else b""
    return run.store.apply_patch(commit_of(run, record.parent), patch, genid, max_file_bytes=sys.maxsize).commit
