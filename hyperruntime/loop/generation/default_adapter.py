"""The default contract: a class of the agent answers tasks, and domains score the answers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Lock

from hyperruntime import registry
from hyperruntime.agents import copy_template, template_names, template_path
from hyperruntime.domain import SPLITS, Domain, Split
from hyperruntime.errors import AgentError, SpecError
from hyperruntime.git.store import RepositoryStore, inspect_repository
from hyperruntime.host.owner import owned_directory
from hyperruntime.loop.evaluation.evaluator import HISTORY_FOLDER, Evaluator, Results, SplitResult, write_results
from hyperruntime.loop.evaluation.scoring import Scorer
from hyperruntime.loop.evaluation.stages import evaluate_domains
from hyperruntime.loop.evaluation.task_runner import TaskRunner, install_harness
from hyperruntime.loop.generation.adapter import ContractAdapter, GenerationAdapter
from hyperruntime.loop.generation.baselines import frozen_mount, view_mount
from hyperruntime.loop.generation.generation_view import GenerationView
from hyperruntime.loop.generation.phases import Phases
from hyperruntime.loop.generation.publish import link_tree
from hyperruntime.loop.run_files.contract import CONTRACT_FILE, HARNESS, Contract, meta_agent_args, parse_contract
from hyperruntime.loop.run_files.layout import PREDICTIONS, REPORT, Layout, evaluation_name
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.container import AgentContainer
from hyperruntime.loop.workbench.context import GenerationPlan, RunContext
from hyperruntime.loop.workbench.copy_out import copy_files
from hyperruntime.loop.workbench.step_log import StepLog
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import make_directory


class DefaultGeneration:
    """One generation of an agent of the default contract.

    The chat histories of a split are copied out as soon as the split is evaluated.
    """

    def __init__(
        self, context: RunContext, plan: GenerationPlan, private: Path, folder: Path, steps: StepLog, phases: Phases
    ) -> None:
        """Make the directories of both containers; the parameters are those of ``open_generation``."""
        self._context, self._plan, self._private, self._folder = context, plan, private, folder
        self._phases = phases
        harness = make_directory(private / "harness")
        self._harness = Mount(source=str(harness), target=HARNESS)
        frozen = frozen_mount(context, plan, private / "frozen")
        workdir = context.contract.frozen if frozen else ""
        self.agent = AgentContainer(
            context, plan, private / "agent", view_mount(context, plan), *frozen, workdir=workdir
        )
        self.trial = AgentContainer(context, plan, private / "evaluation", self._harness)
        self._commit, self._fresh, self._copying = plan.commit, count(1), Lock()
        self._asker = TaskRunner(
            self.trial,
            context.contract,
            harness,
            fresh_place=self._fresh_trial,
            workers=context.options.eval_workers,
            timeout_s=context.options.timeout_eval_s,
            on_output=steps.write,
        )
        judge = Scorer(context, plan, private / "trials")
        self._evaluator = Evaluator(self._asker, judge, phases.results, self._keep_split)

    @property
    def results(self) -> Results:
        """Results of the evaluation so far, per domain and split."""
        return self._evaluator.results

    def meta_agent_args(self) -> list[str]:
        """Return the argv of the meta agent."""
        left = self._context.options.max_generation - int(self._plan.genid)
        return meta_agent_args(self._context.contract, base_commit=self._plan.commit, iterations_left=left)

    def bring_in(self, commit: str) -> None:
        """Fill the directories of ``trial`` with a state and the harness."""
        self._commit = commit
        self._context.store.export(commit, self.trial.repo)
        install_harness(self._private / "harness")

    def check_load(self) -> None:
        """Import the classes that the contract requires."""
        self._asker.check_load(self._context.options.timeout_check_s)

    def evaluate(self) -> bool:
        """Evaluate the state on every domain; return whether the evaluation stopped after the first stage."""
        context = self._context
        return evaluate_domains(self._evaluator, context.domains, context.options, self._copy_histories)

    def evaluate_split(self, split: str) -> None:
        """Evaluate the state in full on one split of each domain."""
        for position, domain in enumerate(self._context.domains):
            part = next(part for part in domain.splits if part.name == split)
            samples = self._context.options.samples(position)
            self._evaluator.run_split(domain, part, samples=samples, staged=False)

    def write_results(self, folder: Path) -> None:
        """Write the predictions and reports of all evaluated splits."""
        for domain in self._context.domains:
            for split, result in self.results.get(domain.name, {}).items():
                write_results(folder, domain, split, result)

    def _keep_split(self, domain: Domain, split: Split, result: SplitResult) -> None:
        self._copy_histories(domain, split)
        self._phases.keep_split(domain.name, split.name, result)

    def _copy_histories(self, domain: Domain, split: Split) -> None:
        name = evaluation_name(domain.name, split.name)
        self.trial.settle()
        copy_files(self.trial.out, self._folder / name / HISTORY_FOLDER, below=name)

    @contextmanager
    def _fresh_trial(self, evaluation: str) -> Iterator[AgentContainer]:
        """Open another container with the same state; copy its chat histories when it is closed."""
        place = AgentContainer(
            self._context, self._plan, self._private / f"evaluation_{next(self._fresh)}", self._harness
        )
        try:
            self._context.store.export(self._commit, place.repo)
            place.start()
            yield place
        finally:
            place.close()
        place.settle()
        with self._copying:
            copy_files(place.out, self._folder / evaluation / HISTORY_FOLDER, below=evaluation)


class DefaultContract:
    """The default contract."""

    asks_models = False
    patch_fuzz = False

    def load_domains(self, names: Sequence[str]) -> tuple[Domain, ...]:
        """Return the installed domains with these references: ``NAME`` or ``NAME:ARGUMENT``."""
        return tuple(registry.load_domain(name) for name in names)

    def check_tasks(self, names: Sequence[str], domains: Sequence[Domain]) -> None:
        """Make each domain read its tasks."""
        for name, domain in zip(names, domains, strict=True):
            with registry.blaming(registry.DOMAINS, name.partition(":")[0]):
                _check_splits(domain)

    def check_agent(self, options: GenerateOptions, domains: Sequence[Domain]) -> str:
        """Return the agent's path or template name."""
        agent = options.agent or domains[0].agent
        if options.copy_root_dir is not None:
            return _check_root_directory(options.copy_root_dir, options.agent)
        if agent in template_names() and os.sep not in agent:
            return agent
        if not os.path.isdir(agent):
            if os.sep in agent or agent.startswith("."):
                raise AgentError(f"agent repository {agent!r} is not a directory; give the path of a git repository")
            template_path(agent)
        inspect_repository(agent)
        return agent

    def prepare(
        self,
        options: GenerateOptions,
        domains: tuple[Domain, ...],
        layout: Layout,
        store: RepositoryStore,
        agent: str,
    ) -> tuple[str, Contract]:
        """Put the initial agent into the store; return its commit and its contract."""
        root = _add_agent(store, options, agent)
        contract = parse_contract(store.read_file(root, CONTRACT_FILE))
        if options.edit_select_parent and not contract.select_parent:
            raise AgentError(f"--edit-select-parent requires [commands] select_parent in the agent's {CONTRACT_FILE}")
        if options.run_baseline is not None and options.run_baseline.startswith("dgm"):
            raise AgentError("the baselines dgm and dgm_custom require an agent of the hyperagents contract")
        if options.optimize_option != "only_agent":
            raise AgentError("ensembles require an agent of the hyperagents contract")
        return root, contract

    def open_generation(
        self, context: RunContext, plan: GenerationPlan, private: Path, folder: Path, steps: StepLog, phases: Phases
    ) -> GenerationAdapter:
        """Make the directories of one attempt at a generation."""
        return DefaultGeneration(context, plan, private, folder, steps, phases)

    def select_parent_args(self, context: RunContext, number: int) -> list[str]:
        """Return the argv of the program that the agent's ``hyperrun.toml`` names, with its options."""
        names = [domain.name for domain in context.domains]
        options = ("--generation", str(number), "--evals_folder", context.contract.evals, "--domains", *names)
        return [*context.contract.select_parent, *options]

    def open_answers(
        self, options: GenerateOptions, layout: Layout, domains: tuple[Domain, ...]
    ) -> GenerationView | None:
        """Return None: this contract has no ensembles."""
        return None

    def publish_evaluation(self, domain: Domain, source: Path, target: Path) -> None:
        """Link the predictions, the report and the chat histories."""
        for part in (PREDICTIONS, REPORT, HISTORY_FOLDER):
            if (source / part).exists():
                link_tree(source / part, target / part)


def _check_splits(domain: Domain) -> None:
    names = [split.name for split in domain.splits]
    if SPLITS[0] not in names or len(set(names)) != len(names):
        raise SpecError(
            "splits", tuple(names), f"{SPLITS[0]} and optional others, no duplicates, in the domain {domain.name!r}"
        )
    for name in names:
        if not domain.tasks(name, 1):
            raise SpecError("splits", name, f"every split of the domain {domain.name!r} needs at least one task")


def _check_root_directory(path: str, agent: str | None) -> str:
    """Return the directory to copy the initial agent from, after checks."""
    if agent is not None:
        raise SpecError("copy_root_dir", path, f"the agent {agent!r} is given too; remove one of the two options")
    if os.path.lexists(os.path.join(path, ".git")):
        inspect_repository(path)
    return path


def _add_agent(store: RepositoryStore, options: GenerateOptions, agent: str) -> str:
    """Put the initial agent into the store and return its commit."""
    if options.copy_root_dir is not None:
        top = os.path.lexists(os.path.join(options.copy_root_dir, ".git"))
        return store.add_repository(options.copy_root_dir) if top else store.from_directory(options.copy_root_dir)
    if agent not in template_names():
        return store.add_repository(agent)
    with owned_directory() as directory:
        copy_template(agent, Path(directory, "agent"))
        return store.from_directory(Path(directory, "agent"))


_: tuple[type[GenerationAdapter], type[ContractAdapter]] = (DefaultGeneration, DefaultContract)
