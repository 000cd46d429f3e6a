"""The interface between the loop and the contract of an agent repository.

A run has the same steps for every agent repository. Two objects implement the parts that depend on
the contract: one :class:`ContractAdapter` per run, and one :class:`GenerationAdapter` per attempt
at a generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import attrs

from hyperruntime.domain import DomainBase
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.evaluation.evaluator import Results
from hyperruntime.loop.generation.phases import Phases
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.contract import Contract
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.container import AgentContainer, GenerationPlan, StepContext
from hyperruntime.loop.workbench.events import StepLog


@attrs.frozen(kw_only=True)
class RunContext(StepContext):
    """What all generations of a run share.

    Attributes:
        adapter: adapter for the kind of contract.
    """

    adapter: ContractAdapter


@attrs.frozen(kw_only=True)
class Attempt:
    """One attempt at a generation.

    Attributes:
        context: context of the run.
        plan: plan of the generation.
        private: directory for the files that containers write.
        folder: directory of the generation.
        steps: receives the output of agents.
        phases: phases completed before an interrupt; completed phases are added.
    """

    context: RunContext
    plan: GenerationPlan
    private: Path
    folder: Path
    steps: StepLog
    phases: Phases


class GenerationAdapter(Protocol):
    """The steps of a generation that depend on its agent's contract.

    Attributes:
        agent: container of the meta agent.
        trial: container in which the new state is evaluated.
        ensemble_failure: one sentence if the ensemble could not be evaluated although the agent
            could, else "".
    """

    agent: AgentContainer
    trial: AgentContainer
    ensemble_failure: str

    @property
    def results(self) -> Results:
        """Results of the evaluation so far, per domain and split."""
        ...

    def meta_agent_args(self) -> list[str]:
        """Return the argv of the meta agent."""
        ...

    def bring_in(self, commit: str) -> None:
        """Fill the directories of ``trial`` with the state at ``commit``; called before its
        container is used.
        """
        ...

    def check_load(self) -> None:
        """Import the classes that the contract requires.

        Raises:
            GenerationFailedError: a class cannot be imported, or the time limit passed.
            ContainerLostError: the container ended during the check.
        """
        ...

    def evaluate(self) -> bool:
        """Evaluate the state as the plan says; return whether the evaluation stopped after the
        first stage.

        Raises:
            GenerationFailedError: the time limit passed, or an evaluation could not run.
            ContainerLostError: the container ended during the evaluation.
        """
        ...

    def write_results(self) -> None:
        """Write the results of the evaluation to the generation's directory.

        Raises:
            StorageError: a file cannot be written.
        """
        ...


class View(Protocol):
    """Files that show a run to its agents."""

    def refresh(self, archive: Archive) -> None:
        """Add the new generations of ``archive``; called before each generation.

        Raises:
            StorageError: a file cannot be written.
        """
        ...


class ContractAdapter(Protocol):
    """The parts of a run that depend on the contract of its agent repository.

    Attributes:
        patch_fuzz: whether a diff may apply although the lines around a change differ a little.
        runs_in_checkout: whether an agent in the working directory is the default agent.
        offers_models: whether a run has the models of the environment although no option and no
            file asks for them.
    """

    patch_fuzz: bool
    runs_in_checkout: bool
    offers_models: bool

    def load_domains(self, names: Sequence[str], *, code: bool = False) -> tuple[DomainBase, ...]:
        """Return the domains with these references.

        Args:
            names: the references.
            code: whether this user named them, so that code of a file may be loaded.

        Raises:
            DomainNotFoundError: a domain does not exist.
            DriverLoadError: a domain cannot be loaded.
            SpecError: a domain cannot be evaluated under this contract.
        """
        ...

    def check_tasks(self, names: Sequence[str], domains: Sequence[DomainBase]) -> None:
        """Make each domain read its tasks; called before the run directory is made.

        Args:
            names: the references of the domains, for error messages.
            domains: the domains, in the same order.

        Raises:
            DriverLoadError: the code of a domain fails.
            HyperRuntimeError: a domain cannot be used, or has no task.
        """
        ...

    def check_agent(self, options: GenerateOptions, domains: Sequence[DomainBase]) -> str:
        """Return the agent's path or template name; called before the run directory is made.

        Args:
            options: options of the run.
            domains: domains of the run; the first one names the default agent.

        Raises:
            RepositoryError: the agent is not a git repository, has no commit, or has uncommitted
                changes.
            AgentError: the agent is neither a directory nor a shipped template.
        """
        ...

    def asks_models(self, agent: str) -> bool:
        """Return whether an agent asks language models: as its ``hyperrun.toml`` says, else as its
        files show.

        Args:
            agent: path or template name of the agent.

        Raises:
            AgentError: its ``hyperrun.toml`` is invalid.
        """
        ...

    def prepare(
        self,
        options: GenerateOptions,
        domains: tuple[DomainBase, ...],
        layout: Layout,
        store: RepositoryStore,
        agent: str,
    ) -> tuple[str, Contract]:
        """Put the initial agent into the store of a new run; return its commit and its contract.

        Args:
            options: options of the run.
            domains: domains of the run.
            layout: paths of the run.
            store: store of the run.
            agent: path or template name of the agent.

        Raises:
            AgentError: the agent lacks a feature that an option requires.
            RepositoryError: the agent cannot be read.
            StorageError: a file cannot be written.
        """
        ...

    def open_generation(self, attempt: Attempt) -> GenerationAdapter:
        """Make the directories of one attempt at a generation.

        Raises:
            StorageError: a directory cannot be made.
        """
        ...

    def select_parent_args(self, context: RunContext, number: int) -> list[str]:
        """Return the argv of the agent's own program that chooses the parent of generation
        ``number``.
        """
        ...

    def open_views(
        self, options: GenerateOptions, layout: Layout, domains: tuple[DomainBase, ...]
    ) -> tuple[View, ...]:
        """Return the views of a run that this contract shows in addition to the generations; called
        at each start.

        Args:
            options: options of the run.
            layout: paths of the run.
            domains: domains of the run.

        Raises:
            StorageError: a file cannot be written.
        """
        ...

    def publish_evaluation(self, domain: DomainBase, source: Path, target: Path) -> None:
        """Show the training evaluation of a finished generation to later meta agents.

        Args:
            domain: the domain.
            source: directory of the evaluation.
            target: directory that agents see.

        Raises:
            OSError: a file cannot be read or written.
        """
        ...
