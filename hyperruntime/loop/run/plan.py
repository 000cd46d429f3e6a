"""Check all inputs of a run, new or resumed, before an engine is used."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import attrs

from hyperruntime import registry
from hyperruntime.datasets.left_out import FAIL, shown, warn_left_out
from hyperruntime.domain import DomainBase
from hyperruntime.errors import AgentError, RunError, SpecError
from hyperruntime.gateway.config.source import RECORD, absolute_source
from hyperruntime.gateway.config.values import GatewayConfig
from hyperruntime.git.user_repository import ENV_FILE
from hyperruntime.images.recipes import BASE
from hyperruntime.loop.generation.adapter import ContractAdapter
from hyperruntime.loop.generation.default_adapter import DefaultContract
from hyperruntime.loop.hyperagents.adapter import HyperAgentsContract
from hyperruntime.loop.run.import_hyperagents import import_run
from hyperruntime.loop.run_files.archive import RunView, read_run
from hyperruntime.loop.run_files.contract import HYPERAGENTS, agent_needs, detect_contract
from hyperruntime.loop.run_files.layout import INITIAL, PREFIX, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.selection import SelectionRule
from hyperruntime.loop.workbench.container import PATCH_LIMIT
from hyperruntime.loop.workbench.model_access import (
    agent_directory,
    choose_gateway,
    stored_agent,
    stored_gateway,
)
from hyperruntime.option_fields import host_requests, names_no_code
from hyperruntime.runs.lock import is_abandoned, is_unowned_remnant, wait_for_lease
from hyperruntime.runs.own_mark import check_requests, has_own_mark, how_to_accept
from hyperruntime.secrets.env_file import read_dotenv


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
        rule: chooses parents.
    """

    options: GenerateOptions
    adapter: ContractAdapter
    domains: tuple[DomainBase, ...]
    image: str
    layout: Layout
    gateway: GatewayConfig | None
    make_executor: Callable[[int], Executor]
    rule: SelectionRule


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
    asked, options = options, _with_absolute_rule(options.settled())  # also detects the contract
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
    rule = registry.load_selection_rule(options.parent_selection)
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
        rule=rule,
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
        rule=registry.load_selection_rule(options.parent_selection),
    )


def _given(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that were given: those that are not None."""
    return {name: value for name, value in changes.items() if value is not None}


def _changed(options: GenerateOptions, changes: Mapping[str, Any]) -> GenerateOptions:
    changed = _with_absolute_rule(attrs.evolve(options, **changes))
    if changed.run_baseline == "no_archive" and changed.parent_selection != "latest":
        raise SpecError(
            "parent_selection",
            changed.parent_selection,
            "'latest', because the run has the baseline no_archive",
        )
    gateway = None if changed.gateway is None else absolute_source(changed.gateway)
    return attrs.evolve(changed, gateway=gateway)


def _with_absolute_rule(options: GenerateOptions) -> GenerateOptions:
    """Return the options with an absolute path of a selection rule's file."""
    if not registry.is_code_file(options.parent_selection):
        return options
    return attrs.evolve(options, parent_selection=os.path.abspath(options.parent_selection))


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


def read_meta_patches(options: GenerateOptions) -> tuple[bytes, ...]:
    """Return the meta patches of a run.

    Raises:
        AgentError: a diff cannot be read, or is too large.
    """
    patches = []
    for name in options.meta_patch_files:
        try:
            with open(name, "rb") as file:
                patches.append(file.read(PATCH_LIMIT + 1))
        except OSError as error:
            raise AgentError(
                f"--meta-patch-files: {name!r} cannot be read: {error.strerror}"
            ) from error
        if len(patches[-1]) > PATCH_LIMIT:
            raise AgentError(
                f"--meta-patch-files: {name!r} has more than {PATCH_LIMIT} bytes; give a "
                "smaller diff"
            )
    return tuple(patches)


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
        ReceivedRunError: as for :func:`~hyperruntime.loop.run.plan.check_received`.
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
    if registry.is_code_file(reference):
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


_DOMAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def contract_adapter(kind: str | None) -> ContractAdapter:
    """Return the adapter for a kind of contract.

    Args:
        kind: one of :data:`~hyperruntime.loop.run_files.contract.KINDS`; None: the default
            contract.
    """
    return HyperAgentsContract() if kind == HYPERAGENTS else DefaultContract()


def agent_here() -> str | None:
    """Return ``"."`` if the working directory is an agent whose contract runs it in its own
    checkout, else None.

    Raises:
        AgentError: the ``hyperrun.toml`` of the working directory is invalid.
    """
    return "." if contract_adapter(detect_contract(".")).runs_in_checkout else None


def load_domains(
    names: Sequence[str], adapter: ContractAdapter, *, code: bool = False
) -> tuple[DomainBase, ...]:
    """Return the domains with these references.

    Args:
        names: the references, ``NAME``, ``NAME:ARGUMENT`` or ``FILE.py:CLASS``.
        adapter: loads the domains.
        code: whether this user named or accepted them, so that a file of code may be loaded. A run
            directory and an agent's file may not name one.

    Raises:
        DomainNotFoundError: a domain does not exist.
        DriverLoadError: a domain cannot be loaded.
        SpecError: a name is invalid or duplicated.
    """
    domains = adapter.load_domains(names, code=code)
    known: set[str] = set()
    for domain in domains:
        if not _DOMAIN_NAME.fullmatch(domain.name) or domain.name in known:
            raise SpecError(
                "domains", domain.name, "unique names of letters, digits, '.', '_' and '-'"
            )
        known.add(domain.name)
    return domains


def check_left_out(domains: Sequence[DomainBase], unsupported: str) -> None:
    """Log what the domains leave out of their data sets, or refuse it.

    Args:
        domains: the domains.
        unsupported: ``skip``, or ``fail``, which refuses a data set with an odd row.

    Raises:
        SpecError: a data set has no valid row; or it has an odd one, and ``unsupported`` is
            ``fail``.
    """
    for domain in domains:
        left = domain.left_out
        if left and unsupported == FAIL:
            raise SpecError("domains", domain.name, f"a data set without odd rows; {shown(left)}")
        warn_left_out(left, "--unsupported fail", domain=domain.name)


def check_received(
    options: GenerateOptions,
    stored: Mapping[str, Any],
    layout: Layout,
    image: str | None,
    *,
    given: Collection[tuple[str, ...]] = (),
    trust: bool,
) -> None:
    """Check that a run may use what it asks for: this user made it, gave it again, or accepts it.

    Args:
        options: options of the run, with the changes that the user gave.
        stored: content of its ``run.json``.
        layout: paths of the run.
        image: the image that these options and the agent lead to; None if it is not known yet.
        given: paths of the fields of the options that the user gave.
        trust: whether the user accepts all of it.

    Raises:
        ReceivedRunError: the run asks for something that the user has neither given nor accepted.
        GatewayConfigError: the ``.env`` of the agent cannot be read.
    """
    requests = [
        *host_requests(attrs.evolve(options, image=image), given),
        *_variables(options, stored, layout),
    ]
    check_requests(layout.run, stored, requests, trust=trust)


def domains_to_show(view: RunView) -> tuple[DomainBase, ...]:
    """Return the domains of a run that is only shown, where no user is asked.

    Raises:
        RunError: a domain has an argument, and this user neither made nor accepted the run.
        HyperRuntimeError: a domain cannot be loaded, or ``run.json`` cannot be read.
    """
    options = view.options
    if not names_no_code(options.domains):
        layout = Layout(Path(view.run_dir))
        options, stored = read_run(layout)
        if not has_own_mark(stored, layout.root):
            named = ", ".join(name for name in options.domains if not names_no_code(name))
            raise RunError(
                f"the run was made elsewhere, and the argument of {named!r} may name any file "
                f"of this machine; {how_to_accept('resume', layout.root)}"
            )
    return load_domains(options.domains, contract_adapter(options.contract), code=True)


def _variables(
    options: GenerateOptions, stored: Mapping[str, Any], layout: Layout
) -> Iterator[str]:
    """Yield the variables of the ``.env`` that ``run.json`` names by the agent, if the gateway
    reads it.
    """
    agent = stored_agent(stored, layout)
    if agent is None or (options.gateway is not None and not options.gateway.startswith(RECORD)):
        return
    if layout.contains(agent / ENV_FILE):  # never used
        return
    if names := read_dotenv(agent / ENV_FILE):
        yield f"{' and '.join(names)} of {str(agent / ENV_FILE)!r}"
