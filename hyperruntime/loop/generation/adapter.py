"""The seam between the loop and the contract of an agent repository.

A run is the same list of steps for every agent repository. What its contract decides is asked of two objects: a
:class:`ContractAdapter`, chosen once for the run, and a :class:`GenerationAdapter` for each attempt at a generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hyperruntime.domain import Domain
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.evaluation.evaluator import Results
from hyperruntime.loop.generation.generation_view import GenerationView
from hyperruntime.loop.generation.phases import Phases
from hyperruntime.loop.run_files.contract import Contract
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.container import AgentContainer
from hyperruntime.loop.workbench.context import GenerationPlan, RunContext
from hyperruntime.loop.workbench.step_log import StepLog


class GenerationAdapter(Protocol):
    """What a generation asks of its agent's contract.

    Attributes:
        agent: the place that the meta agent works in.
        trial: the place that the kept state is looked at in.
    """

    agent: AgentContainer
    trial: AgentContainer

    @property
    def results(self) -> Results:
        """Per domain and split, what was evaluated so far."""
        ...

    def meta_agent_args(self) -> list[str]:
        """Return the argv of the meta agent."""
        ...

    def bring_in(self, commit: str) -> None:
        """Fill the trial's directories with a state, before its container is looked at."""
        ...

    def check_load(self) -> None:
        """Import what the agent must still have.

        Raises:
            GenerationFailedError: something cannot be imported, or that takes too long.
            ContainerLostError: the container ended meanwhile.
        """
        ...

    def evaluate(self) -> bool:
        """Evaluate the state on every domain; return whether it was stopped after the first stage.

        Raises:
            GenerationFailedError: an evaluation took too long, or could not run at all.
            ContainerLostError: the container ended meanwhile.
        """
        ...

    def evaluate_split(self, split: str) -> None:
        """Evaluate the state in full on one split of each domain, which all have it.

        Raises:
            GenerationFailedError: an evaluation took too long, or could not run at all.
            ContainerLostError: the container ended meanwhile.
        """
        ...

    def write_results(self, folder: Path) -> None:
        """Write what the evaluation gave to the generation's directory.

        Raises:
            StorageError: it cannot be written.
        """
        ...


class ContractAdapter(Protocol):
    """What the contract of an agent repository decides for a whole run.

    Attributes:
        asks_models: whether its agents may ask models though no file of theirs says so.
        patch_fuzz: whether diffs of its agents apply where the lines around a change differ a little.
    """

    asks_models: bool
    patch_fuzz: bool

    def load_domains(self, names: Sequence[str]) -> tuple[Domain, ...]:
        """Return the domains with these references.

        Raises:
            DomainNotFoundError: one does not exist.
            DriverLoadError: one cannot be loaded.
            SpecError: one cannot be evaluated here.
        """
        ...

    def check_tasks(self, names: Sequence[str], domains: Sequence[Domain]) -> None:
        """Make each domain read its tasks before anything is made.

        Args:
            names: the references of the domains, for error messages.
            domains: the domains, in the same order.

        Raises:
            DriverLoadError: the code of a domain fails.
            HyperRuntimeError: a domain cannot be used, or has no task.
        """
        ...

    def check_agent(self, options: GenerateOptions, domains: Sequence[Domain]) -> str:
        """Return the agent's path or template name, before anything is made.

        Raises:
            RepositoryError: it is not a git repository, has no commit, or has uncommitted changes.
            AgentError: it is neither a directory nor a shipped template.
        """
        ...

    def prepare(
        self,
        options: GenerateOptions,
        domains: tuple[Domain, ...],
        layout: Layout,
        store: RepositoryStore,
        agent: str,
    ) -> tuple[str, Contract]:
        """Put the initial agent into the store of a new run; return its commit and its contract.

        Raises:
            AgentError: an option needs what this agent does not offer.
            RepositoryError: the agent cannot be read.
            StorageError: a file cannot be written.
        """
        ...

    def open_generation(
        self, context: RunContext, plan: GenerationPlan, private: Path, folder: Path, steps: StepLog, phases: Phases
    ) -> GenerationAdapter:
        """Make the directories of one attempt at a generation.

        Args:
            context: of the run. plan: of the generation. private: takes what containers write.
            folder: the generation's own. steps: takes what agents print. phases: what was done before an interrupt;
                takes what is done now.

        Raises:
            StorageError: a directory cannot be made.
        """
        ...

    def select_parent_args(self, context: RunContext, number: int) -> list[str]:
        """Return the argv of the agent's own program that chooses the parent of a generation."""
        ...

    def open_answers(
        self, options: GenerateOptions, layout: Layout, domains: tuple[Domain, ...]
    ) -> GenerationView | None:
        """Return what agents see of the answers of all generations, to be kept up to date; None where they see none.

        Raises:
            StorageError: a file cannot be written.
        """
        ...

    def publish_evaluation(self, domain: Domain, source: Path, target: Path) -> None:
        """Show the training evaluation of a finished generation to later meta agents.

        Args:
            domain: the domain. source: the directory of the evaluation. target: the directory that agents see.

        Raises:
            OSError: a file cannot be read or written.
        """
        ...
