"""The default contract: a class of the agent answers tasks, and domains score the answers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path
from threading import Lock

from hyperruntime import registry
from hyperruntime.agents import agent_folder, copy_template, is_template, template_path
from hyperruntime.domain import SPLITS, DomainBase, Split
from hyperruntime.errors import AgentError, SpecError
from hyperruntime.git.store import RepositoryStore, inspect_repository
from hyperruntime.host.owner import owned_directory
from hyperruntime.loop.evaluation.evaluator import (
    HISTORY_FOLDER,
    Evaluator,
    SplitResult,
    evaluate_domains,
    write_results,
)
from hyperruntime.loop.evaluation.scoring import Scorer
from hyperruntime.loop.evaluation.task_runner import TaskRunner
from hyperruntime.loop.generation.adapter import (
    Attempt,
    ContractAdapter,
    GenerationAdapter,
    RunContext,
    View,
)
from hyperruntime.loop.generation.publish import link_tree
from hyperruntime.loop.run_files.contract import (
    CONTRACT_FILE,
    DEFAULT,
    HARNESS,
    Contract,
    agent_needs,
    parse_contract,
    read_contract_file,
)
from hyperruntime.loop.run_files.layout import (
    CHAT_HISTORY,
    PREDICTIONS,
    REPORT,
    Layout,
    evaluation_name,
)
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.container import AgentContainer, copy_files, meta_agent_container
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import make_directory


class DefaultGeneration:
    """One generation of an agent of the default contract.

    The chat histories of a split are copied out as soon as the split is evaluated.
    """

    def __init__(self, attempt: Attempt) -> None:
        """Make the directories of both containers."""
        self._attempt = attempt
        self._context = attempt.context
        self._plan = attempt.plan
        self._private = attempt.private
        self.results = attempt.phases.results
        self.ensemble_failure = ""
        self._harness_dir = make_directory(self._private / "harness")
        self._harness = Mount(source=str(self._harness_dir), target=HARNESS)
        self.agent = meta_agent_container(self._context, self._plan, self._private)
        self.trial = AgentContainer(
            self._context, self._plan, self._private / "evaluation", self._harness
        )
        self._commit = self._plan.commit
        self._fresh = count(1)
        self._copying = Lock()

    @cached_property
    def _runner(self) -> TaskRunner:
        write = self._attempt.steps.write
        return TaskRunner(self._context, self.trial, self._harness_dir, self._fresh_trial, write)

    def meta_agent_args(self) -> list[str]:
        """Return the argv of the meta agent."""
        contract = self._context.contract
        left = self._context.options.max_generation - int(self._plan.genid)
        return [
            *contract.meta_agent,
            *meta_agent_options(contract, contract.repo, self._plan.commit, left),
        ]

    def bring_in(self, commit: str) -> None:
        """Fill the directories of ``trial`` with a state."""
        self._commit = commit
        self._context.store.export(commit, self.trial.repo)

    def check_load(self) -> None:
        """Import the classes that the contract requires."""
        self._runner.check_load()

    def evaluate(self) -> bool:
        """Evaluate the state as the plan says; return whether the evaluation stopped after the
        first stage.
        """
        scorer = Scorer(self._context, self._plan, self._private / "trials")
        evaluator = Evaluator(self._runner, scorer, self.results, self._keep_split)
        return evaluate_domains(
            evaluator, self._context.domains, self._context.options, self._plan.split
        )

    def write_results(self) -> None:
        """Write the predictions and reports of all evaluated splits."""
        for domain in self._context.domains:
            for split, result in self.results.get(domain.name, {}).items():
                write_results(self._attempt.folder, domain, split, result)

    def _keep_split(self, domain: DomainBase, split: Split, result: SplitResult) -> None:
        self._copy_histories(self.trial, evaluation_name(domain.name, split.name))
        self._attempt.phases.keep_split(domain.name, split.name, result)

    def _copy_histories(self, place: AgentContainer, evaluation: str) -> None:
        place.reclaim_files()
        with self._copying:
            copy_files(
                place.out, self._attempt.folder / evaluation / HISTORY_FOLDER, below=evaluation
            )

    @contextmanager
    def _fresh_trial(self, evaluation: str) -> Iterator[AgentContainer]:
        """Open another container with the same state; copy its chat histories when it is closed."""
        place = AgentContainer(
            self._context,
            self._plan,
            self._private / f"evaluation_{next(self._fresh)}",
            self._harness,
        )
        try:
            self._context.store.export(self._commit, place.repo)
            place.start()
            yield place
        finally:
            place.close()
        self._copy_histories(place, evaluation)


def meta_agent_options(
    contract: Contract, repo_path: str, base_commit: str, iterations_left: int
) -> list[str]:
    """Return the options of the meta agent's program.

    Args:
        contract: names the directories in the container.
        repo_path: the repository, as the program expects it.
        base_commit: commit of the state that the meta agent edits.
        iterations_left: number of generations that the run can still make.
    """
    return [
        *("--chat_history_file", f"{contract.out}/{CHAT_HISTORY}"),
        *("--repo_path", repo_path),
        *("--evals_folder", contract.evals),
        *("--git_dir", contract.repo),
        *("--base_commit", base_commit),
        *("--outdir", contract.out),
        *("--iterations_left", str(iterations_left)),
    ]


class DefaultContract:
    """The default contract."""

    patch_fuzz = False
    runs_in_checkout = False
    offers_models = False

    def load_domains(self, names: Sequence[str], *, code: bool = False) -> tuple[DomainBase, ...]:
        """Return the domains with these references: ``NAME``, ``NAME:ARGUMENT``, or with code
        ``FILE.py:CLASS``.
        """
        return tuple(
            registry.load_domain_file(name)
            if code and registry.is_code_file(name)
            else registry.load_domain(name)
            for name in names
        )

    def check_tasks(self, names: Sequence[str], domains: Sequence[DomainBase]) -> None:
        """Make each domain read its tasks."""
        for name, domain in zip(names, domains, strict=True):
            of_file = registry.is_code_file(name)
            blaming = registry.blaming_code if of_file else registry.blaming
            with blaming(
                *(("domain", name) if of_file else (registry.DOMAINS, name.partition(":")[0]))
            ):
                _check_splits(domain)

    def check_agent(self, options: GenerateOptions, domains: Sequence[DomainBase]) -> str:
        """Return the agent's path or template name."""
        agent = options.agent or domains[0].agent
        if options.copy_root_dir is not None:
            agent = _check_root_directory(options.copy_root_dir, options.agent)
        elif not is_template(agent):
            if not os.path.isdir(agent):
                if os.sep in agent or agent.startswith("."):
                    raise AgentError(
                        f"agent repository {agent!r} is not a directory; give the path of a git "
                        "repository"
                    )
                template_path(agent)
            inspect_repository(agent)
        contract = parse_contract(read_contract_file(agent_folder(agent)))
        if is_template(agent) and contract.kind != DEFAULT:
            raise AgentError(
                f"the agent template {agent!r} states contract = {contract.kind!r}; only "
                "repositories may"
            )
        _check_options(options, contract)
        return agent

    def asks_models(self, agent: str) -> bool:
        """Return whether the agent's ``hyperrun.toml`` says that it asks language models."""
        return agent_needs(agent).models is True

    def prepare(
        self,
        options: GenerateOptions,
        domains: tuple[DomainBase, ...],
        layout: Layout,
        store: RepositoryStore,
        agent: str,
    ) -> tuple[str, Contract]:
        """Put the initial agent into the store; return its commit and its contract."""
        root = _add_agent(store, options, agent)
        contract = parse_contract(store.read_file(root, CONTRACT_FILE))
        _check_options(options, contract)  # again: git may ignore the file that was checked
        return root, contract

    def open_generation(self, attempt: Attempt) -> GenerationAdapter:
        """Make the directories of one attempt at a generation."""
        return DefaultGeneration(attempt)

    def select_parent_args(self, context: RunContext, number: int) -> list[str]:
        """Return the argv of the program that the agent's ``hyperrun.toml`` names, with its
        options.
        """
        names = [domain.name for domain in context.domains]
        options = (
            "--generation",
            str(number),
            "--evals_folder",
            context.contract.evals,
            "--domains",
            *names,
        )
        return [*context.contract.select_parent, *options]

    def open_views(
        self, options: GenerateOptions, layout: Layout, domains: tuple[DomainBase, ...]
    ) -> tuple[View, ...]:
        """Return no views: this contract has no ensembles."""
        return ()

    def publish_evaluation(self, domain: DomainBase, source: Path, target: Path) -> None:
        """Link the predictions, the report and the chat histories."""
        for part in (PREDICTIONS, REPORT, HISTORY_FOLDER):
            link_tree(source / part, target / part, below=source.parent.parent)


def _check_splits(domain: DomainBase) -> None:
    names = [split.name for split in domain.splits]
    if SPLITS[0] not in names or len(set(names)) != len(names):
        raise SpecError(
            "splits",
            tuple(names),
            f"{SPLITS[0]} and optional others, no duplicates, in the domain {domain.name!r}",
        )
    for name in names:
        if not domain.tasks(name, 1):
            raise SpecError(
                "splits", name, f"every split of the domain {domain.name!r} needs at least one task"
            )


def _check_options(options: GenerateOptions, contract: Contract) -> None:
    if options.edit_select_parent and not contract.select_parent:
        raise AgentError(
            f"--edit-select-parent requires [commands] select_parent in the agent's {CONTRACT_FILE}"
        )
    if options.run_baseline is not None and options.run_baseline.startswith("dgm"):
        raise AgentError(
            f"--run-baseline {options.run_baseline} requires an agent of the hyperagents contract"
        )
    if options.optimize_option != "only_agent":
        raise AgentError(
            f"--optimize-option {options.optimize_option} requires an agent of the hyperagents "
            "contract"
        )


def _check_root_directory(path: str, agent: str | None) -> str:
    """Return the directory to copy the initial agent from, after checks."""
    if agent is not None:
        raise SpecError(
            "copy_root_dir",
            path,
            f"the agent {agent!r} is given too; remove one of the two options",
        )
    if os.path.lexists(os.path.join(path, ".git")):
        inspect_repository(path)
    return path


def _add_agent(store: RepositoryStore, options: GenerateOptions, agent: str) -> str:
    """Put the initial agent into the store and return its commit."""
    if options.copy_root_dir is not None:
        top = os.path.lexists(os.path.join(options.copy_root_dir, ".git"))
        return (
            store.add_repository(options.copy_root_dir)
            if top
            else store.from_directory(options.copy_root_dir)
        )
    if not is_template(agent):
        return store.add_repository(agent)
    with owned_directory() as directory:
        copy_template(agent, Path(directory, "agent"))
        return store.from_directory(Path(directory, "agent"))


_: tuple[type[GenerationAdapter], type[ContractAdapter]] = (DefaultGeneration, DefaultContract)
