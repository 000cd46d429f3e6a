"""Check all inputs of a run, new or resumed, before an engine is used."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import attrs

from hyperruntime import registry
from hyperruntime.domain import DomainBase
from hyperruntime.errors import AgentError, RunError, SpecError
from hyperruntime.gateway.config.source import absolute_source
from hyperruntime.gateway.config.values import GatewayConfig
from hyperruntime.images.recipes import BASE
from hyperruntime.loop.generation.adapter import ContractAdapter
from hyperruntime.loop.generation.meta_patches import read_meta_patches
from hyperruntime.loop.run.contracts import check_left_out, contract_adapter, load_domains
from hyperruntime.loop.run.import_hyperagents import import_run
from hyperruntime.loop.run.received import check_received
from hyperruntime.loop.run_files.archive import read_run
from hyperruntime.loop.run_files.contract import agent_needs
from hyperruntime.loop.run_files.layout import INITIAL, PREFIX, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.model_access import agent_directory, choose_gateway, stored_gateway
from hyperruntime.runs.lock import is_abandoned, is_unowned_remnant, wait_for_lease


@attrs.frozen(kw_only=True)
class RunPlan:
    """The checked inputs of a new run or of a resume.

    Attributes:
        options: options of the run, with seed and run id.
        adapter: adapter for the agent's contract.
        domains: domains of the evaluation, in order.
        image: name or reference of the image that all containers of the run use; it may not exist
            yet.
        layout: paths of the run.
        gateway: configuration of the gateway; None if the run has no models.
        make_executor: returns an executor that runs the given number of generations at once.
    """

    options: GenerateOptions
    adapter: ContractAdapter
    domains: tuple[DomainBase, ...]
    image: str
    layout: Layout
    gateway: GatewayConfig | None
    make_executor: Callable[[int], Executor]


@attrs.frozen(kw_only=True)
class NewRunPlan(RunPlan):
    """A new run, whose directory is not made yet; its options have the image.

    Attributes:
        asked: options of the run as they were given, perhaps without a run id.
        agent: path or template name of the initial agent.
    """

    asked: GenerateOptions
    agent: str


@attrs.frozen(kw_only=True)
class ResumePlan(RunPlan):
    """The resume of an existing run, whose changed options are not stored yet.

    Attributes:
        stored: the options that the run had when the resume was planned.
    """

    stored: GenerateOptions


def plan_run(options: GenerateOptions) -> NewRunPlan:
    """Return the plan of a new run; make nothing, but remove a directory that a killed start left.

    Raises:
        DomainNotFoundError: a domain does not exist.
        DriverLoadError: a domain or the executor cannot be loaded.
        HyperRuntimeError: no installed executor has this name.
        AgentError: the agent cannot be used.
        RepositoryError: the agent's repository cannot be used.
        SpecError: an option is invalid, or two options exclude each other.
        GatewayConfigError: the gateway's configuration is invalid, or the models that the agent
            needs have no server.
        RunError: the run directory exists already.
    """
    asked, options = options, options.settled()  # which also detects the contract
    if asked.run_id is None:
        options = attrs.evolve(options, run_id=free_run_id(options))
    adapter = contract_adapter(options.contract)
    make_executor = registry.load_executor(options.executor)
    domains = load_domains(options.domains, adapter, code=True)
    adapter.check_tasks(options.domains, domains)
    check_left_out(domains, options.unsupported)
    agent = check_agent(options, domains, adapter)
    image = choose_image(options, domains)
    options = attrs.evolve(options, image=image)  # a resumed run may not have its agent
    layout = Layout(choose_directory(options))
    folder = agent_directory(agent)
    required = adapter.asks_models(agent)
    return NewRunPlan(
        asked=asked,
        options=options,
        adapter=adapter,
        domains=domains,
        agent=agent,
        image=image,
        layout=layout,
        gateway=choose_gateway(
            options, folder, layout, offered=adapter.offers_models, required=required
        ),
        make_executor=make_executor,
    )


def plan_resume(
    run_dir: str | os.PathLike[str],
    *,
    max_generation: int | None = None,
    parallel: int | None = None,
    changes: Mapping[str, Any] | None = None,
    given: Collection[tuple[str, ...]] = (),
    trust: bool = False,
    wait: bool = False,
) -> ResumePlan:
    """Return the plan of resuming an interrupted run, or of extending a finished one.

    It changes no file, except that a run that HyperAgents wrote is imported first, in its
    directory.

    Args:
        run_dir: the run directory.
        max_generation: new number of the last generation; None: unchanged.
        parallel: new number of generations that run at once; None: unchanged.
        changes: new values of other options by name, such as ``budget_tokens``; a value of None:
            unchanged.
        given: paths of the fields of options that the user gave again, apart from ``changes``.
        trust: whether the user accepts what a run that was made elsewhere asks of the host.
        wait: whether to wait until the lease of an owner on another machine is stale; the owner may
            be dead.

    Raises:
        ArchiveError: the directory is not a run directory, or has a symbolic link.
        RunLockedError: the run must be imported, and a live process owns it.
        ReceivedRunError: another user made the run, and it asks for something that was neither
            given nor accepted.
        HyperRuntimeError: as for :func:`plan_run`.
    """
    layout = Layout(Path(run_dir).absolute())
    if wait:
        wait_for_lease(layout.root)
    import_run(layout.root)
    layout.without_links()
    stored_options, stored = read_run(layout)
    new = _given({"max_generation": max_generation, "parallel": parallel, **(changes or {})})
    options = _changed(stored_options, new)
    adapter = contract_adapter(options.contract)
    said = {*given, *((name,) for name in new)}
    domains, image = checked_domains(options, stored, layout, adapter, given=said, trust=trust)
    return ResumePlan(
        options=options,
        stored=stored_options,
        adapter=adapter,
        domains=domains,
        image=image,
        layout=layout,
        gateway=stored_gateway(options, stored, layout, offered=adapter.offers_models),
        make_executor=registry.load_executor(options.executor),
    )


def _given(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that were given: those that are not None."""
    return {name: value for name, value in changes.items() if value is not None}


def _changed(options: GenerateOptions, changes: Mapping[str, Any]) -> GenerateOptions:
    changed = attrs.evolve(options, **changes)
    if changed.run_baseline == "no_archive" and changed.parent_selection != "latest":
        raise SpecError(
            "parent_selection",
            changed.parent_selection,
            "'latest', because the run has the baseline no_archive",
        )
    gateway = None if changed.gateway is None else absolute_source(changed.gateway)
    return attrs.evolve(changed, gateway=gateway)


def check_agent(
    options: GenerateOptions, domains: Sequence[DomainBase], adapter: ContractAdapter
) -> str:
    """Return the agent's path or template name, after checks.

    Args:
        options: options of the run.
        domains: domains of the run; the first one names the default agent.
        adapter: adapter for the agent's contract.

    Raises:
        RepositoryError: the agent is not a git repository, has no commit, or has uncommitted
            changes.
        AgentError: the agent is neither a directory nor a shipped template, or a meta patch cannot
            be read.
    """
    read_meta_patches(options)
    if options.copy_root_dir is not None and not os.path.isdir(options.copy_root_dir):
        raise AgentError(
            f"--copy-root-dir: {options.copy_root_dir!r} is not a directory; give a directory "
            "with the agent's files"
        )
    return adapter.check_agent(options, domains)


def checked_domains(
    options: GenerateOptions,
    stored: Mapping[str, Any],
    layout: Layout,
    adapter: ContractAdapter,
    *,
    given: Collection[tuple[str, ...]] = (),
    trust: bool,
) -> tuple[tuple[DomainBase, ...], str]:
    """Return the domains and the image of an existing run, after a check of what the run asks of
    the host.

    The check comes first if a domain has an argument, which may name code or any other file of the
    host.

    Args:
        options: options of the run, with the changes that the user gave.
        stored: content of its ``run.json``.
        layout: paths of the run.
        adapter: loads the domains.
        given: paths of the fields of the options that the user gave.
        trust: whether the user accepts all that the run asks for.

    Raises:
        ReceivedRunError: as for :func:`~hyperruntime.loop.run.received.check_received`.
        HyperRuntimeError: as for :func:`plan_run`.
    """
    if any(":" in name for name in options.domains):
        check_received(options, stored, layout, options.image or "", given=given, trust=trust)
    domains = load_domains(options.domains, adapter, code=True)
    image = choose_image(options, domains)
    check_received(options, stored, layout, image, given=given, trust=trust)
    check_left_out(domains, options.unsupported)
    return domains, image


def absolute_references(names: Sequence[str]) -> tuple[str, ...]:
    """Return references that are valid in any working directory: arguments that are existing paths
    become absolute.

    The path of a ``FILE.py:CLASS`` becomes absolute too.
    """
    return tuple(map(_absolute_reference, names))


def _absolute_reference(reference: str) -> str:
    name, colon, argument = reference.partition(":")
    if registry.is_domain_file(reference):
        return f"{os.path.abspath(name)}:{argument}"
    return (
        f"{name}:{os.path.abspath(argument)}" if colon and os.path.exists(argument) else reference
    )


def choose_image(options: GenerateOptions, domains: Sequence[DomainBase]) -> str:
    """Return the image of all containers of a run: the user's, else that of the domains or the
    agent.

    Args:
        options: options of the run.
        domains: domains of the run.

    Raises:
        SpecError: the domains name different images, and the user names none.
        AgentError: the agent's contract cannot be read.
    """
    if options.image is not None:
        return options.image
    named = {domain.image for domain in domains}
    if len(named) > 1:
        raise SpecError(
            "image",
            None,
            f"the domains need different images ({', '.join(sorted(named))}); give one",
        )
    own = agent_needs(options.agent or domains[0].agent).image if named == {BASE} else None
    return own or domains[0].image


def free_run_id(options: GenerateOptions) -> str:
    """Return the run id of the options, with the suffix ``_2``, ``_3``, ... if its directory
    exists.
    """
    number = 1
    run_id = str(options.run_id)
    while os.path.lexists(os.path.join(options.output_dir_parent, f"{PREFIX}{run_id}")):
        number += 1
        run_id = f"{options.run_id}_{number}"
    return run_id


def choose_directory(options: GenerateOptions) -> Path:
    """Return the path of a new run directory; remove a directory that a killed start left there.

    Raises:
        RunError: the path exists already.
    """
    path = Path(options.output_dir_parent).absolute() / f"{PREFIX}{options.run_id}"
    layout = Layout(path)
    known = layout.run.is_file()
    begun = layout.journal.exists() or layout.generation(INITIAL).exists()
    if not known and not begun and (is_abandoned(path) or is_unowned_remnant(path)):
        shutil.rmtree(path, ignore_errors=True)  # a start was killed before the run was stored
    if os.path.lexists(path):
        resume = f"resume it with `hyperrun resume {shlex.quote(str(path))}`"
        step = resume if known else "remove it if no process starts a run there"
        raise RunError(
            f"run directory {str(path)!r} exists already; {step}, or give another --run-id"
        )
    return path
