"""Check all inputs of a run before a file is written or an engine is used."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

import attrs

from hyperruntime import registry
from hyperruntime.domain import Domain
from hyperruntime.errors import AgentError, RunError, SpecError
from hyperruntime.gateway.config.values import GatewayConfig
from hyperruntime.images.recipes import BASE
from hyperruntime.loop.generation.adapter import ContractAdapter
from hyperruntime.loop.generation.default_adapter import DefaultContract
from hyperruntime.loop.generation.meta_patches import read_meta_patches
from hyperruntime.loop.hyperagents.adapter import HyperAgentsContract
from hyperruntime.loop.run_files.contract import HYPERAGENTS, agent_needs, asks_models
from hyperruntime.loop.run_files.layout import INITIAL, PREFIX, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.model_access import agent_directory, choose_gateway
from hyperruntime.storage.run_lock import is_unowned_remnant, owner_state

_DOMAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@attrs.frozen(kw_only=True)
class RunPlan:
    """A new run whose inputs are checked; its image and its directory are not made yet.

    Attributes:
        asked: options of the run as they were given, perhaps without a run id.
        options: options of the run, with seed, run id and image.
        adapter: adapter for the agent's contract.
        domains: domains of the evaluation, in order.
        agent: path or template name of the initial agent.
        layout: paths of the run.
        gateway: configuration of the gateway; None if the run has no models.
        make_executor: returns an executor that runs the given number of generations at once.
    """

    asked: GenerateOptions
    options: GenerateOptions
    adapter: ContractAdapter
    domains: tuple[Domain, ...]
    agent: str
    layout: Layout
    gateway: GatewayConfig | None
    make_executor: Callable[[int], Executor]

    @property
    def image(self) -> str:
        """Name or reference of the image that all containers of the run use."""
        assert self.options.image is not None
        return self.options.image


def contract_adapter(kind: str | None) -> ContractAdapter:
    """Return the adapter for a kind of contract.

    Args:
        kind: one of :data:`~hyperruntime.loop.run_files.contract.KINDS`; None: the default contract.
    """
    return HyperAgentsContract() if kind == HYPERAGENTS else DefaultContract()


def plan_run(options: GenerateOptions) -> RunPlan:
    """Return the plan of a new run; make nothing, but remove a directory that a killed start left.

    Raises:
        DomainNotFoundError: a domain does not exist.
        DriverLoadError: a domain or the executor cannot be loaded.
        HyperRuntimeError: no installed executor has this name.
        AgentError: the agent cannot be used.
        RepositoryError: the agent's repository cannot be used.
        SpecError: an option is invalid, or two options exclude each other.
        GatewayConfigError: the gateway's configuration is invalid, or the models that the agent needs have no server.
        RunError: the run directory exists already.
    """
    asked, options = options, options.settled()  # which also detects the contract
    if asked.run_id is None:
        options = attrs.evolve(options, run_id=free_run_id(options))
    adapter = contract_adapter(options.contract)
    make_executor, domains = registry.load_executor(options.executor), load_domains(options.domains, adapter)
    adapter.check_tasks(options.domains, domains)
    agent = check_agent(options, domains, adapter)
    options = attrs.evolve(options, image=choose_image(options, domains))  # a resumed run may not have its agent
    layout = Layout(choose_directory(options))
    required = asks_models(agent, options.contract)
    return RunPlan(
        asked=asked,
        options=options,
        adapter=adapter,
        domains=domains,
        agent=agent,
        layout=layout,
        gateway=choose_gateway(options, agent_directory(agent), layout, required=required),
        make_executor=make_executor,
    )


def load_domains(names: Sequence[str], adapter: ContractAdapter) -> tuple[Domain, ...]:
    """Return the domains with these references.

    Args:
        names: the references, ``NAME`` or ``NAME:ARGUMENT``.
        adapter: loads the domains.

    Raises:
        DomainNotFoundError: a domain does not exist.
        DriverLoadError: a domain cannot be loaded.
        SpecError: a name is invalid or duplicated.
    """
    domains = adapter.load_domains(names)
    known: set[str] = set()
    for domain in domains:
        if not _DOMAIN_NAME.fullmatch(domain.name) or domain.name in known:
            raise SpecError("domains", domain.name, "unique names of letters, digits, '.', '_' and '-'")
        known.add(domain.name)
    return domains


def check_agent(options: GenerateOptions, domains: Sequence[Domain], adapter: ContractAdapter) -> str:
    """Return the agent's path or template name, after checks.

    Args:
        options: options of the run.
        domains: domains of the run; the first one names the default agent.
        adapter: adapter for the agent's contract.

    Raises:
        RepositoryError: the agent is not a git repository, has no commit, or has uncommitted changes.
        AgentError: the agent is neither a directory nor a shipped template, or a start diff cannot be read.
    """
    read_meta_patches(options)
    if options.copy_root_dir is not None and not os.path.isdir(options.copy_root_dir):
        raise AgentError(
            f"--copy-root-dir: {options.copy_root_dir!r} is not a directory; give a directory with the agent's files"
        )
    return adapter.check_agent(options, domains)


def settled_references(names: Sequence[str]) -> tuple[str, ...]:
    """Return references that are valid in any working directory: arguments that are existing paths become absolute."""
    parts = (name.partition(":") for name in names)
    return tuple(
        f"{name}:{os.path.abspath(argument)}" if colon and os.path.exists(argument) else name + colon + argument
        for name, colon, argument in parts
    )


def choose_image(options: GenerateOptions, domains: Sequence[Domain]) -> str:
    """Return the image of all containers of a run: the user's, else that of the domains or the agent.

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
        raise SpecError("image", None, f"the domains need different images ({', '.join(sorted(named))}); give one")
    own = agent_needs(options.agent or domains[0].agent).image if named == {BASE} else None
    return own or domains[0].image


def run_image(options: GenerateOptions) -> str:
    """Return the image of an existing run.

    Raises:
        DomainNotFoundError, DriverLoadError, SpecError, AgentError: as for :func:`plan_run`.
    """
    return choose_image(options, load_domains(options.domains, contract_adapter(options.contract)))


def free_run_id(options: GenerateOptions) -> str:
    """Return the run id of the options, with the suffix ``_2``, ``_3``, ... if its directory exists."""
    number, run_id = 1, str(options.run_id)
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
    known, begun = layout.run.is_file(), layout.journal.exists() or layout.generation(INITIAL).exists()
    if not known and not begun and (owner_state(path) == "dead" or is_unowned_remnant(path)):
        shutil.rmtree(path, ignore_errors=True)  # a start was killed before the run was stored
    if os.path.lexists(path):
        step = f"resume it with `hyperrun resume {shlex.quote(str(path))}`, or" if known else "remove it, or"
        raise RunError(f"run directory {str(path)!r} exists already; {step} give another --run-id")
    return path
