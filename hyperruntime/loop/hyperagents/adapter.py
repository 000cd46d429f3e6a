"""The hyperagents contract: agent repositories that have the HyperAgents layout.

Paths and commands are those of HyperAgents: the work tree at ``/hyperagents``, outputs below
``/tmp``, and earlier generations in ``/tmp/generate_<run_id>``. This directory is a read-only mount
here, not a copy.

The repository's own harness runs in the trial's container, on tables without labels. Its files are
copied out, and the host adds the labels to the answers. ``domains.report`` then scores them in a
container with the run's root state.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.domain import DomainBase
from hyperruntime.errors import PatchError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.logs import get_logger
from hyperruntime.loop.evaluation.evaluator import Results, SplitResult, evaluated_splits
from hyperruntime.loop.generation.adapter import (
    Attempt,
    ContractAdapter,
    GenerationAdapter,
    RunContext,
    View,
)
from hyperruntime.loop.generation.generation_view import GenerationView
from hyperruntime.loop.generation.series import every_series, progress_info, whose_scores
from hyperruntime.loop.hyperagents import commands
from hyperruntime.loop.hyperagents.domains import DOMAINS, TRAIN, OriginalDomain, repository_domain
from hyperruntime.loop.hyperagents.ensemble import (
    AGENT_ARCHIVE_VIEW,
    Ensemble,
    add_answers,
    best_results,
    check_ensembles,
    evaluates_agents,
    has_ensembles,
    prepare_agent_archive,
    show_training_answers,
)
from hyperruntime.loop.hyperagents.ensemble import FOLDER as ANSWERS_FOLDER
from hyperruntime.loop.hyperagents.initial import check_checkout, make_root, reference_folder
from hyperruntime.loop.hyperagents.labels import Labelled, copy_without_labels
from hyperruntime.loop.hyperagents.problem import problem_statement
from hyperruntime.loop.hyperagents.scoring import (
    TABLE,
    Judge,
    repository_container,
    score_without_answers,
)
from hyperruntime.loop.run_files.archive import Archive, ArchiveFile
from hyperruntime.loop.run_files.contract import (
    AGENT_ARCHIVE,
    Contract,
    agent_needs,
    repository_contract,
)
from hyperruntime.loop.run_files.layout import ARCHIVE_FILE, FIRST_SPLIT, INITIAL, RUN_LOG, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.container import copy_files, meta_agent_container, read_below
from hyperruntime.loop.workbench.failures import GenerationFailedError
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import storage_errors, write_atomic, write_file
from hyperruntime.storage.run_files import open_to_append
from hyperruntime.units import one_line

log = get_logger(__name__)

_MODEL_CLIENT = "agent/llm.py"


class RepositoryGeneration:
    """One generation of an agent of the hyperagents contract."""

    def __init__(self, attempt: Attempt) -> None:
        """Make the directories of both containers."""
        self._attempt = attempt
        self._context = attempt.context
        self._plan = attempt.plan
        self._commit = self._plan.commit
        self._ensemble_results: Results = {}
        self.ensemble_failure = ""
        self._domains = [DOMAINS[domain.name] for domain in self._context.domains]
        self._dgm = bool(self._context.baseline & {"dgm", "dgm_custom"})
        others = self._context.layout.root / AGENT_ARCHIVE_VIEW  # the run in agent_archive_path
        mounts = [Mount(source=str(others), target=AGENT_ARCHIVE)] if others.is_dir() else []
        self.agent = meta_agent_container(
            self._context, self._plan, attempt.private, *mounts, env=commands.ENV
        )
        self.trial = repository_container(attempt, "evaluation")

    @property
    def results(self) -> Results:
        """Results of the evaluation so far, per domain and split: the better one of agent and
        ensemble.
        """
        return best_results(self._attempt.phases.results, self._ensemble_results)

    def meta_agent_args(self) -> list[str]:
        """Return the argv of the meta agent."""
        context = self._context
        plan = self._plan
        if not self._dgm:
            left = context.options.max_generation - int(plan.genid)
            return commands.with_python(commands.meta_agent(context.contract, plan.commit, left))
        assert plan.parent is not None
        statement = problem_statement(
            context.layout.generation(plan.parent),
            self._domains,
            seed=f"{context.options.seed}:{plan.genid}:problem",
            custom="dgm_custom" in context.baseline,
        )
        return commands.with_python(
            commands.coding_agent(problem_statement=statement, base_commit=plan.commit)
        )

    def bring_in(self, commit: str) -> None:
        """Fill the directories of ``trial`` with a state."""
        self._commit = commit
        self._context.store.export(commit, self.trial.repo)

    def check_load(self) -> None:
        """Run the import checks of the contract."""
        options = self._context.options
        for args in commands.load_checks(dgm=self._dgm, select_parent=options.edit_select_parent):
            named = f"`{args[-1]}`"
            write = self._attempt.steps.write
            self.trial.run(
                commands.with_python(args), named, options.timeout_check_s, write, "does-not-load"
            )

    def evaluate(self) -> bool:
        """Evaluate the state as the plan says; return whether the evaluation stopped after the
        first stage.
        """
        context = self._context
        split = self._plan.split
        staged_only = False
        with Judge(self._attempt) as judge:
            if split or evaluates_agents(context.options):
                staged_only = self._evaluate_agent(judge)
            if not split and has_ensembles(context.options, context.domains):
                self._run_ensemble(judge, full=not staged_only)
        return staged_only

    def write_results(self) -> None:
        """Do nothing: the results of each split are written when it is evaluated."""

    def _run_ensemble(self, judge: Judge, *, full: bool) -> None:
        """Evaluate the ensemble; if agents are evaluated too, the generation does not fail with its
        ensemble.
        """
        try:
            Ensemble(self._attempt, self._ensemble_results).run(self._commit, judge, full=full)
        except GenerationFailedError as error:
            if not evaluates_agents(self._context.options):
                raise
            self.ensemble_failure = one_line(str(error))
            self._attempt.steps.failed("ensemble", self.ensemble_failure)

    def _evaluate_agent(self, judge: Judge) -> bool:
        """Evaluate the agent; return whether the evaluation stopped after the first stage.

        The first stage runs on the train split of every domain. In both stages train is evaluated
        before val, and val before test, so that the stored and shown files of a split contain
        nothing of a later split.
        """
        if self._plan.genid == INITIAL and not self._plan.split:
            self._run_splits(judge, full=False)
            return True
        full = self._context.options.skip_staged_eval or bool(self._plan.split)
        if not full:
            full = all(
                self._run_at_once(judge, [(domain, TRAIN) for domain in self._domains], full=False)
            )
        self._run_splits(judge, full=full)
        return not full

    def _run_splits(self, judge: Judge, *, full: bool) -> None:
        test = self._context.options.eval_test
        only = self._plan.split
        parts = [
            (domain, evaluated_splits(domain, test=test, only=only)) for domain in self._domains
        ]
        for number in range(max(len(splits) for _, splits in parts)):
            asked = [
                (domain, split.name)
                for domain, splits in parts
                for split in splits[number : number + 1]
            ]
            self._run_at_once(judge, asked, full=full)

    def _run_at_once(
        self, judge: Judge, splits: Sequence[tuple[OriginalDomain, str]], *, full: bool
    ) -> tuple[bool, ...]:
        """Evaluate splits of different domains in parallel; return which ones have a sufficient
        score.
        """
        return parallel_map(len(splits), lambda pair: self._run(judge, *pair, full=full), splits)

    def _run(self, judge: Judge, domain: OriginalDomain, split: str, *, full: bool) -> bool:
        """Evaluate a split unless it is done; return whether its score is enough for the full
        evaluation.
        """
        done = self._attempt.phases.results.get(domain.name, {}).get(split)
        if done is not None and (done.complete or not full):
            return done.complete or domain.first_stage.is_passed(done.mean)
        result = None if full else self._known(domain, split)
        if result is None:
            samples = judge.samples(domain) if full else domain.first_stage.staged_samples
            self._answer(domain, split, samples)
            folder = self._attempt.folder / domain.evaluation(split)
            result = judge.score(
                domain, split, folder, self._labelled(judge, domain, split, samples), full=full
            )
        self._attempt.phases.keep_split(domain.name, split, result)
        return domain.first_stage.is_passed(result.mean)

    def _known(self, domain: OriginalDomain, split: str) -> SplitResult | None:
        """Return the initial agent's result from the checkout, or None; only for the initial
        generation.
        """
        if self._plan.genid != INITIAL:
            return None
        name = domain.evaluation(split)
        source = reference_folder(self._context.layout) / "initial" / name
        score = domain.read_score(source)
        if score is None:
            return None
        with storage_errors(self._attempt.folder):
            shutil.copytree(source, self._attempt.folder / name, dirs_exist_ok=True)
        self._attempt.steps.note(f"{name}: reuse the checkout's results of the initial agent")
        return score_without_answers(domain, score, full=False)

    def _answer(self, domain: OriginalDomain, split: str, samples: int) -> None:
        """Run the harness and copy its files out."""
        options = self._context.options
        name = domain.evaluation(split)
        args = commands.with_python(
            commands.harness(domain, split, samples=samples, workers=options.eval_workers)
        )
        self.trial.run(args, name, options.timeout_eval_s, self._attempt.steps.write)
        self.trial.reclaim_files()
        copy_files(self.trial.out, self._attempt.folder / name, below=name)

    def _labelled(
        self, judge: Judge, domain: OriginalDomain, split: str, samples: int
    ) -> Labelled | None:
        """Add the labels to the table of answers; return None if the domain has no table."""
        if not domain.datasets:
            return None
        path = f"{domain.evaluation(split)}/{TABLE}"
        try:
            said = read_below(self.trial.out, path, judge.table_limit(domain, split))
        except PatchError as error:
            raise GenerationFailedError(
                "evaluation", f"{domain.evaluation(split)}: {error}"
            ) from error
        labelled = judge.label(domain, split, said, samples)
        write_file(self._attempt.folder / path, labelled.table)
        return labelled


class HyperAgentsContract:
    """The hyperagents contract."""

    patch_fuzz = True  # as HyperAgents applies them
    runs_in_checkout = True
    offers_models = True

    def load_domains(self, names: Sequence[str], *, code: bool = False) -> tuple[DomainBase, ...]:
        """Return domains that the repository's own harness evaluates."""
        return tuple(repository_domain(name) for name in names)

    def check_tasks(self, names: Sequence[str], domains: Sequence[DomainBase]) -> None:
        """Do nothing: the repository's harness knows the tasks."""

    def check_agent(self, options: GenerateOptions, domains: Sequence[DomainBase]) -> str:
        """Return the path of the agent's checkout, after checks."""
        check_ensembles(options, domains)
        return check_checkout(
            options.agent or domains[0].agent, options, [DOMAINS[domain.name] for domain in domains]
        )

    def asks_models(self, agent: str) -> bool:
        """Return what the agent's ``hyperrun.toml`` says, else whether the repository has its
        client of models.
        """
        said = agent_needs(agent).models
        return Path(agent, _MODEL_CLIENT).is_file() if said is None else said

    def prepare(
        self,
        options: GenerateOptions,
        domains: tuple[DomainBase, ...],
        layout: Layout,
        store: RepositoryStore,
        agent: str,
    ) -> tuple[str, Contract]:
        """Put the initial agent without labels into the store; return its commit and its
        contract.
        """
        root = make_root(
            options, [DOMAINS[domain.name] for domain in domains], layout, store, agent
        )
        prepare_agent_archive(options, domains, layout)
        return root, repository_contract(str(options.run_id))

    def open_generation(self, attempt: Attempt) -> GenerationAdapter:
        """Make the directories of one attempt at a generation."""
        return RepositoryGeneration(attempt)

    def select_parent_args(self, context: RunContext, number: int) -> list[str]:
        """Return the argv of the repository's ``utils.run_select_next_parent``."""
        names = [domain.name for domain in context.domains]
        return commands.with_python(commands.select_next_parent(names, context.contract.evals))

    def open_views(
        self, options: GenerateOptions, layout: Layout, domains: tuple[DomainBase, ...]
    ) -> tuple[View, ...]:
        """Return the overview of the run for meta agents, and all answers for ensembles if the run
        has them.
        """
        overview = RunOverview(options, layout, domains)
        if has_ensembles(options, domains):
            return overview, GenerationView(layout, ANSWERS_FOLDER, domains, add_answers)
        if options.optimize_option != "only_agent":
            log.warning(
                "no ensembles: not all domains have them", domains=" ".join(options.domains)
            )
        return (overview,)

    def publish_evaluation(self, domain: DomainBase, source: Path, target: Path) -> None:
        """Copy the evaluations of the agent and of the ensemble without the labels of their
        tables.
        """
        copy_without_labels(source, target, DOMAINS[domain.name].label_columns)
        show_training_answers(DOMAINS[domain.name], source.parent, target.parent)


_: tuple[type[GenerationAdapter], type[ContractAdapter]] = (
    RepositoryGeneration,
    HyperAgentsContract,
)


_SHOWN = (
    "run_id", "max_generation", "eval_samples", "eval_workers", "parent_selection", "reset_task_agent",
    "reset_meta_agent", "run_baseline", "optimize_option", "eval_test", "skip_staged_eval", "edit_select_parent",
)  # fmt: skip


class RunOverview:
    """The overview of a run on disk, in the directory that meta agents see."""

    def __init__(
        self, options: GenerateOptions, layout: Layout, domains: Sequence[DomainBase]
    ) -> None:
        """Append the options of this start to the log.

        Args:
            options: options of the run.
            layout: paths of the run.
            domains: domains of the run.

        Raises:
            StorageError: the log cannot be written.
        """
        self._folder = layout.view
        self._whose = whose_scores(options.optimize_option)
        self._archive_file = ArchiveFile(self._folder / ARCHIVE_FILE)
        self._repaired = False
        path = self._folder / RUN_LOG
        with storage_errors(path), open_to_append(path) as file:
            file.write(f"{shown_arguments(options, domains)}\n".encode(errors="replace"))

    def refresh(self, archive: Archive) -> None:
        """Add new generations of ``archive``; in a long run only at the intervals of
        :class:`ArchiveFile`.

        Raises:
            StorageError: a file cannot be written.
        """
        records = tuple(archive)
        ids = [record.genid for record in records]
        if not self._repaired:
            self._archive_file.repair(ids)  # after a kill
        elif not self._archive_file.add(ids):
            return
        self._repaired = True
        for series in every_series(records, self._whose, only=FIRST_SPLIT):
            write_atomic(
                self._folder / f"progress_info_{series.name}.txt", progress_info(series).encode()
            )


def shown_arguments(options: GenerateOptions, domains: Sequence[DomainBase]) -> str:
    """Return the options that agents may see, in the form of HyperAgents' log.

    Args:
        options: options of the run.
        domains: domains of the run.
    """
    args = {
        "domains": [domain.name for domain in domains],
        **{name: getattr(options, name) for name in _SHOWN},
        "meta_patch_files": options.meta_patch_paths,
        "agent_archive_path": options.agent_archive_path and AGENT_ARCHIVE,
    }
    return "Args: " + ", ".join(f"{name}={value}" for name, value in args.items())
