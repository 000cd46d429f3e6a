"""The hyperagents contract: agent repositories that have the HyperAgents layout.

Paths and commands are those of HyperAgents: the work tree at ``/hyperagents``, outputs below ``/tmp``, and earlier
generations in ``/tmp/generate_<run_id>``. This directory is a read-only mount here, not a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hyperruntime.domain import Domain
from hyperruntime.git.store import RepositoryStore
from hyperruntime.logs import get_logger
from hyperruntime.loop.evaluation.evaluator import Results
from hyperruntime.loop.generation.adapter import Attempt, ContractAdapter, GenerationAdapter
from hyperruntime.loop.generation.generation_view import GenerationView
from hyperruntime.loop.hyperagents import commands
from hyperruntime.loop.hyperagents.domains import DOMAINS, repository_domain
from hyperruntime.loop.hyperagents.ensemble import (
    AGENT_ARCHIVE_VIEW,
    Ensemble,
    add_answers,
    best_results,
    check_ensembles,
    evaluates_agents,
    has_ensembles,
    prepare_agent_archive,
)
from hyperruntime.loop.hyperagents.ensemble import FOLDER as ANSWERS_FOLDER
from hyperruntime.loop.hyperagents.evaluation import RepositoryEvaluator
from hyperruntime.loop.hyperagents.initial import check_checkout, make_root
from hyperruntime.loop.hyperagents.judging import Judge, open_judge, repository_container
from hyperruntime.loop.hyperagents.labels import copy_without_labels
from hyperruntime.loop.hyperagents.problem import problem_statement
from hyperruntime.loop.run_files.contract import Contract, repository_contract
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.container import meta_agent_container
from hyperruntime.loop.workbench.context import RunContext
from hyperruntime.loop.workbench.failures import GenerationFailedError
from hyperruntime.spec import Mount

log = get_logger(__name__)


class RepositoryGeneration:
    """One generation of an agent of the hyperagents contract."""

    def __init__(self, attempt: Attempt) -> None:
        """Make the directories of both containers."""
        self._attempt, self._context, self._plan = attempt, attempt.context, attempt.plan
        self._commit = self._plan.commit
        self._ensemble_results: Results = {}
        self._dgm = bool(self._context.baseline & {"dgm", "dgm_custom"})
        mounts = self._agent_archive()
        self.agent = meta_agent_container(self._context, self._plan, attempt.private, *mounts, env=commands.ENV)
        self.trial = repository_container(attempt, "evaluation")

    @property
    def results(self) -> Results:
        """Results of the evaluation so far, per domain and split: the better one of agent and ensemble."""
        return best_results(self._attempt.phases.results, self._ensemble_results)

    def meta_agent_args(self) -> list[str]:
        """Return the argv of the meta agent."""
        if self._dgm:
            return commands.with_python(self._coding_agent())
        left = self._context.options.max_generation - int(self._plan.genid)
        evals, base = self._context.contract.evals, self._plan.commit
        return commands.with_python(commands.meta_agent(evals_folder=evals, base_commit=base, iterations_left=left))

    def bring_in(self, commit: str) -> None:
        """Fill the directories of ``trial`` with a state."""
        self._commit = commit
        self._context.store.export(commit, self.trial.repo)

    def check_load(self) -> None:
        """Run the import checks of the contract."""
        options = self._context.options
        for args in commands.load_checks(dgm=self._dgm, select_parent=options.edit_select_parent):
            named, write = f"`{args[-1]}`", self._attempt.steps.write
            self.trial.check_load(commands.with_python(args), named, options.timeout_check_s, write)

    def evaluate(self) -> bool:
        """Evaluate the state on every domain; return whether the evaluation stopped after the first stage."""
        context, staged_only = self._context, False
        with open_judge(self._attempt) as judge:
            if evaluates_agents(context.options):
                staged_only = RepositoryEvaluator(self._attempt, self.trial, judge).evaluate()
            if has_ensembles(context.options, context.domains):
                self._run_ensemble(judge, full=not staged_only)
        return staged_only

    def evaluate_split(self, split: str) -> None:
        """Evaluate the state in full on one split of each domain."""
        with open_judge(self._attempt) as judge:
            RepositoryEvaluator(self._attempt, self.trial, judge).evaluate_split(split)

    def write_results(self) -> None:
        """Do nothing: the results of each split are written when it is evaluated."""

    def _coding_agent(self) -> list[str]:
        context, plan = self._context, self._plan
        assert plan.parent is not None
        statement = problem_statement(
            context.layout.generation(plan.parent),
            [DOMAINS[domain.name] for domain in context.domains],
            seed=f"{context.options.seed}:{plan.genid}:problem",
            custom="dgm_custom" in context.baseline,
        )
        return commands.coding_agent(problem_statement=statement, base_commit=plan.commit)

    def _run_ensemble(self, judge: Judge, *, full: bool) -> None:
        """Evaluate the ensemble; if agents are evaluated too, a failed ensemble is only logged."""
        try:
            Ensemble(self._attempt, self._ensemble_results).run(self._commit, judge, full=full)
        except GenerationFailedError as error:
            if not evaluates_agents(self._context.options):
                raise
            self._attempt.steps.note(f"the ensemble failed: {error}")

    def _agent_archive(self) -> tuple[Mount, ...]:
        """Return the mount that shows the run in ``agent_archive_path`` to the meta agent; empty if there is none."""
        folder = self._context.layout.root / AGENT_ARCHIVE_VIEW
        return (Mount(source=str(folder), target=commands.AGENT_ARCHIVE),) if folder.is_dir() else ()


class HyperAgentsContract:
    """The hyperagents contract."""

    patch_fuzz = True  # as HyperAgents applies them

    def load_domains(self, names: Sequence[str]) -> tuple[Domain, ...]:
        """Return domains that the repository's own harness evaluates."""
        return tuple(repository_domain(name) for name in names)

    def check_tasks(self, names: Sequence[str], domains: Sequence[Domain]) -> None:
        """Do nothing: the repository's harness knows the tasks."""

    def check_agent(self, options: GenerateOptions, domains: Sequence[Domain]) -> str:
        """Return the path of the agent's checkout, after checks."""
        check_ensembles(options, domains)
        return check_checkout(options.agent or domains[0].agent)

    def prepare(
        self,
        options: GenerateOptions,
        domains: tuple[Domain, ...],
        layout: Layout,
        store: RepositoryStore,
        agent: str,
    ) -> tuple[str, Contract]:
        """Put the initial agent without labels into the store; return its commit and its contract."""
        root = make_root(options, [DOMAINS[domain.name] for domain in domains], layout, store, agent)
        prepare_agent_archive(options, domains, layout)
        return root, repository_contract(str(options.run_id))

    def open_generation(self, attempt: Attempt) -> GenerationAdapter:
        """Make the directories of one attempt at a generation."""
        return RepositoryGeneration(attempt)

    def select_parent_args(self, context: RunContext, number: int) -> list[str]:
        """Return the argv of the repository's ``utils.run_select_next_parent``."""
        names = [domain.name for domain in context.domains]
        return commands.with_python(commands.select_next_parent(names, context.contract.evals))

    def open_answers(
        self, options: GenerateOptions, layout: Layout, domains: tuple[Domain, ...]
    ) -> GenerationView | None:
        """Return the view of all generations' answers for ensembles; None if the run has no ensembles."""
        if has_ensembles(options, domains):
            return GenerationView(layout, ANSWERS_FOLDER, domains, add_answers)
        if options.optimize_option != "only_agent":
            log.warning("no ensembles: not all domains have them", domains=" ".join(options.domains))
        return None

    def publish_evaluation(self, domain: Domain, source: Path, target: Path) -> None:
        """Copy the evaluation without the labels of its tables."""
        copy_without_labels(source, target, DOMAINS[domain.name].label_columns)


_: tuple[type[GenerationAdapter], type[ContractAdapter]] = (RepositoryGeneration, HyperAgentsContract)
