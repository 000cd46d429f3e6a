"""Fill a new run directory, or open an existing one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.domain import DomainBase
from hyperruntime.errors import AgentError, PatchError, RepositoryError, RunError
from hyperruntime.git.change_rules import ChangeRules
from hyperruntime.git.store import RepositoryStore
from hyperruntime.logs import get_logger
from hyperruntime.loop.generation.adapter import ContractAdapter, RunContext
from hyperruntime.loop.generation.phases import unfinished
from hyperruntime.loop.generation.publish import amend_marked, publish_missing
from hyperruntime.loop.run.plan import (
    NewRunPlan,
    ResumePlan,
    absolute_references,
    check_agent,
    read_meta_patches,
)
from hyperruntime.loop.run_files.archive import Archive, read_run, write_run
from hyperruntime.loop.run_files.contract import Contract
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, INITIAL, PATCH, RUN_LOG, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import structured
from hyperruntime.loop.workbench.container import protected_paths
from hyperruntime.loop.workbench.events import Events, OnEvent
from hyperruntime.loop.workbench.model_access import Models, agent_directory
from hyperruntime.loop.workbench.open_containers import LoopRuntime, OpenContainers
from hyperruntime.reclaim.trees import remove_reclaimed
from hyperruntime.runs.own_mark import has_own_mark
from hyperruntime.runs.run_file import note_end
from hyperruntime.storage.atomic import (
    make_directory,
    make_private_directory,
    storage_errors,
    write_atomic,
)
from hyperruntime.storage.run_files import open_to_append, read_run_file

log = get_logger(__name__)

_TASK_AGENT = "task_agent"
_META_AGENT = "meta_agent"


@attrs.frozen(kw_only=True)
class OpenedRun:
    """A run whose files were read.

    Attributes:
        options: options of the run, with seed and run id.
        layout: paths of the run.
        adapter: adapter for the kind of contract.
        domains: domains of the evaluation.
        stored: content of ``run.json``.
        archive: the finished generations.
        store: repository with all states.
    """

    options: GenerateOptions
    layout: Layout
    adapter: ContractAdapter
    domains: tuple[DomainBase, ...]
    stored: Mapping[str, Any]
    archive: Archive
    store: RepositoryStore = attrs.field(init=False)

    @store.default
    def _open_store(self) -> RepositoryStore:
        return RepositoryStore(self.layout.repository)

    @property
    def start(self) -> Start:
        """The first generation: the initial agent with the meta patches applied."""
        return stored_start(self.stored)

    def context(
        self, runtime: LoopRuntime, image: str, on_event: OnEvent | None, models: Models
    ) -> RunContext:
        """Return the context of the run's generations.

        Args:
            runtime: an open runtime.
            image: reference of the containers' image.
            on_event: called with each event; None: no events.
            models: access to models.
        """
        return RunContext(
            options=self.options,
            layout=self.layout,
            store=self.store,
            contract=structured(Contract, self.stored["contract"]),
            adapter=self.adapter,
            root=self.stored["root_commit"],
            first=self.start.commit,
            domains=self.domains,
            image=image,
            containers=OpenContainers(runtime),
            events=Events(on_event),
            models=models,
        )

    def commit_of(self, genid: GenId) -> str:
        """Return the commit of a generation's state; rebuild a lost state from the patches of its
        lineage.

        Args:
            genid: id of the generation; an unknown id gives the first generation's state.

        Raises:
            PatchError: a patch does not apply, so the state cannot be rebuilt.
            RepositoryError: the state cannot be stored.
            StorageError: a patch cannot be read.
        """
        lost: list[GenId] = []
        at = self.archive.get(genid)
        commit = ""
        while at is not None and at.parent is not None and not commit:
            if self._has(at.commit):
                commit = at.commit
            else:
                log.warning("state made again from its patches", generation=at.genid)
                lost.append(at.genid)
                at = self.archive.get(at.parent)
        if at is not None and not commit and self._has(at.commit):
            commit = at.commit
        commit = commit or self.start.commit
        for name in reversed(lost):
            commit = self.store.apply_patch(
                commit, self._patch(name), name, ChangeRules.without_sizes()
            ).commit
        return commit

    def _has(self, commit: str) -> bool:
        try:
            self.store.tree(commit)
        except RepositoryError:
            return False
        return True

    def _patch(self, genid: GenId) -> bytes:
        path = self.layout.generation(genid) / AGENT_OUTPUT / PATCH
        with storage_errors(path), suppress(FileNotFoundError):
            return read_run_file(path, below=self.layout.root)
        return b""


def create_run(plan: NewRunPlan) -> OpenedRun:
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


def _fill(plan: NewRunPlan) -> OpenedRun:
    options = plan.options
    layout = plan.layout
    domains = plan.domains
    adapter = plan.adapter
    make_directory(layout.view)
    make_private_directory(layout.work)
    store = RepositoryStore(layout.repository)
    root, contract = adapter.prepare(
        options, domains, layout, store, check_agent(options, domains, adapter)
    )
    protected = protected_paths(domains)
    start = begin(
        store,
        root,
        options,
        layout,
        contract=contract,
        protected=protected,
        fuzz=adapter.patch_fuzz,
    )
    facts = {
        "root_commit": root,
        "start": {"genid": start.genid, "commit": start.commit},
        "agent": str(agent_directory(plan.agent) or plan.agent),
        "gateway": plan.gateway is not None,
        "contract": attrs.asdict(contract),
    }
    stored = write_run(
        layout, attrs.evolve(options, domains=absolute_references(options.domains)), facts
    )
    _log_args(layout, options, root, start.notes)
    archive = Archive(layout)
    return OpenedRun(
        options=options,
        layout=layout,
        adapter=adapter,
        domains=domains,
        stored=stored,
        archive=archive,
    )


def reopen_run(plan: ResumePlan, reclaim_args: Sequence[str]) -> OpenedRun:
    """Open an existing run whose directory this process owns, and complete the steps that a kill
    left out.

    Args:
        plan: plan of the resume; changed options are stored.
        reclaim_args: see :class:`~hyperruntime.driver.EngineInfo`; used to remove files of
            containers.

    Raises:
        ArchiveError: a file of the run cannot be read.
        RunError: another process changed the options since the resume was planned.
        StorageError: a file cannot be written.
    """
    layout = plan.layout
    options = plan.options
    domains = plan.domains
    adapter = plan.adapter
    stored_options, stored = read_run(layout)  # again: the files belong to this process only now
    if stored_options != plan.stored:
        raise RunError(
            f"another process changed the options of {str(layout.root)!r} meanwhile; resume it "
            "again"
        )
    archive = Archive.load(layout)
    make_directory(layout.view)
    tighten(layout)
    is_own = has_own_mark(stored, layout.root)
    _clear_work(layout, archive, reclaim_args, keep=is_own)
    if options != stored_options or not is_own:
        write_run(layout, options, stored)
    run = OpenedRun(
        options=options,
        layout=layout,
        adapter=adapter,
        domains=domains,
        stored=stored,
        archive=archive,
    )
    run.store.recover()
    archive.repair()
    note_end(layout.run, "")
    _log_args(layout, options, stored["root_commit"])
    amend_marked(layout, archive)
    publish_missing(layout, archive, domains, adapter, run.store)
    return run


def _log_args(
    layout: Layout, options: GenerateOptions, root_commit: str, notes: Iterable[str] = ()
) -> None:
    """Append one line with all options and the root commit to the log of the run, and one line per
    note.
    """
    args = {**attrs.asdict(options, recurse=False), "root_commit": root_commit}
    text = "Args: " + ", ".join(f"{name}={value}" for name, value in args.items())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines = "".join(f"{now} {' '.join(line.split())}\n" for line in (text, *notes))
    path = layout.root / RUN_LOG
    with storage_errors(path), open_to_append(path) as file:
        file.write(lines.encode(errors="surrogateescape"))


def tighten(layout: Layout) -> None:
    """Close the private directories of a run to other users; earlier versions left them open.

    Raises:
        StorageError: a directory belongs to another user.
    """
    left = layout.evaluations.glob(".*.partial*") if layout.evaluations.is_dir() else ()
    for folder in (layout.work, layout.repository, *left):
        make_private_directory(folder)


def _clear_work(
    layout: Layout, archive: Archive, reclaim_args: Sequence[str], *, keep: bool
) -> None:
    """Remove work files of generations that are finished or must restart: all, unless this user
    made the run.
    """
    kept = {name for name, genid in unfinished(layout).items() if keep and genid not in archive}
    for name in os.listdir(layout.work):
        path = layout.work / name
        if name not in kept:
            remove_reclaimed(path, reclaim_args) if path.is_dir() else path.unlink(missing_ok=True)


@attrs.frozen(kw_only=True)
class Start:
    """The first generation of a run.

    Attributes:
        genid: ``"initial"``, or 0 if diffs may change its answers.
        commit: its state.
        notes: one sentence for each omitted part of a diff.
    """

    genid: GenId
    commit: str
    notes: tuple[str, ...] = ()


def reset_paths(options: GenerateOptions, contract: Contract) -> tuple[str, ...]:
    """Return the files that the meta patches must not change."""
    paths = []
    if options.reset_task_agent:
        paths += [f"{_TASK_AGENT}.py", _file_of(contract.task_agent)]
    if options.reset_meta_agent:
        others = [name for name in contract.load if name != contract.task_agent]
        paths += [f"{_META_AGENT}.py", *map(_file_of, others)]
    return tuple(dict.fromkeys(paths))


def begin(
    store: RepositoryStore,
    root: str,
    options: GenerateOptions,
    layout: Layout,
    *,
    contract: Contract,
    protected: Sequence[str],
    fuzz: bool,
) -> Start:
    """Apply the meta patches to the root commit; return the first generation.

    Args:
        store: store of the run.
        root: commit of the initial agent.
        options: options of the run; they name the diffs.
        layout: paths of the run; copies of the diffs are written there.
        contract: names the files of the agents.
        protected: paths that no diff may change.
        fuzz: whether a diff may apply although the lines around a change differ a little.

    Raises:
        AgentError: a diff cannot be read, or does not apply.
        StorageError: a copy cannot be written.
    """
    commit = root
    notes = []
    rules = options.change_rules((*protected, *reset_paths(options, contract)))
    named = zip(
        options.meta_patch_files, read_meta_patches(options), options.meta_patch_paths, strict=True
    )
    for number, (name, patch, copy) in enumerate(named):
        try:
            snapshot = store.apply_patch(
                commit,
                patch,
                f"meta_{number}",
                rules,
                fuzz=fuzz,
            )
        except PatchError as error:
            raise AgentError(
                f"--meta-patch-files: {name!r}: {error}; give diffs made for this agent"
            ) from error
        notes += [f"left out of {name}: {path}: {reason}" for path, reason in snapshot.dropped]
        target = Path(layout.root / copy)
        make_directory(target.parent)
        write_atomic(target, snapshot.patch)
        commit = snapshot.commit
    return Start(genid=options.first_genid, commit=commit, notes=tuple(notes))


def stored_start(stored: Mapping[str, Any]) -> Start:
    """Return the first generation from ``run.json``; without an entry (older versions) it is the
    root commit.
    """
    start = stored.get("start", {})
    return Start(
        genid=start.get("genid", INITIAL), commit=start.get("commit", stored["root_commit"])
    )


def _file_of(name: str) -> str:
    """Return the path of the file of a ``module:Class``."""
    return name.partition(":")[0].replace(".", "/") + ".py"
