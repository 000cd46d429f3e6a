"""Evaluate with a repository's own harness, and score the answers in a container without evolved code.

The harness runs in the trial's container, on tables without labels. Its files are copied out, and the host adds the
labels to the answers. ``domains.report`` then scores them in a container with the run's root state.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.errors import PatchError
from hyperruntime.loop.evaluation.evaluator import SplitResult, evaluated_splits
from hyperruntime.loop.generation.adapter import Attempt
from hyperruntime.loop.hyperagents import commands
from hyperruntime.loop.hyperagents.domains import DOMAINS, TRAIN, OriginalDomain
from hyperruntime.loop.hyperagents.initial import reference_folder
from hyperruntime.loop.hyperagents.judging import TABLE, Judge, score_without_answers
from hyperruntime.loop.hyperagents.labels import Labelled
from hyperruntime.loop.run_files.layout import INITIAL
from hyperruntime.loop.workbench.container import AgentContainer
from hyperruntime.loop.workbench.context import RunContext
from hyperruntime.loop.workbench.copy_out import copy_files, read_below
from hyperruntime.loop.workbench.failures import GenerationFailedError
from hyperruntime.storage.atomic import storage_errors, write_file

ALL = -1


def samples_of(context: RunContext, domain: OriginalDomain) -> int:
    """Return how many tasks of a split the full evaluation runs; -1 for all."""
    names = [known.name for known in context.domains]
    samples = context.options.samples(names.index(domain.name))
    return ALL if samples is None else samples


class RepositoryEvaluator:
    """Evaluates one generation; the results are added to those of its phases."""

    def __init__(self, attempt: Attempt, trial: AgentContainer, judge: Judge) -> None:
        """Use the container of a generation.

        Args:
            attempt: the attempt at the generation; completed splits are added to its phases.
            trial: container with the state; its outputs are in ``/tmp``.
            judge: scores the answers.
        """
        self._context, self._plan, self._trial, self._judge = attempt.context, attempt.plan, trial, judge
        self._folder, self._steps, self._phases = attempt.folder, attempt.steps, attempt.phases
        self._domains = tuple(DOMAINS[domain.name] for domain in self._context.domains)

    def evaluate(self) -> bool:
        """Evaluate the agent; return whether the evaluation stopped after the first stage.

        The first stage runs on the train split of every domain. In both stages train is evaluated before val, and val
        before test, so that the stored and shown files of a split contain nothing of a later split.

        Raises:
            GenerationFailedError: a command failed, or a time limit passed.
            ContainerLostError: a container ended during the evaluation.
        """
        if self._plan.genid == INITIAL:
            self._run_splits(full=False)
            return True
        full = self._context.options.skip_staged_eval
        if not full:
            full = all(self._run_at_once([(domain, TRAIN) for domain in self._domains], full=False))
        self._run_splits(full=full)
        return not full

    def evaluate_split(self, split: str) -> None:
        """Evaluate one split of each domain in full.

        Raises:
            GenerationFailedError: a command failed, or a time limit passed.
            ContainerLostError: a container ended during the evaluation.
        """
        self._run_at_once([(domain, split) for domain in self._domains], full=True)

    def _run_splits(self, *, full: bool) -> None:
        test = self._context.options.eval_test
        parts = [(domain, evaluated_splits(domain, test=test)) for domain in self._domains]
        for number in range(max(len(splits) for _, splits in parts)):
            asked = [(domain, split.name) for domain, splits in parts for split in splits[number : number + 1]]
            self._run_at_once(asked, full=full)

    def _run_at_once(self, splits: Sequence[tuple[OriginalDomain, str]], *, full: bool) -> tuple[bool, ...]:
        """Evaluate splits of different domains in parallel; return which ones have a sufficient score."""
        return parallel_map(len(splits), lambda pair: self._run(*pair, full=full), splits)

    def _run(self, domain: OriginalDomain, split: str, *, full: bool) -> bool:
        """Evaluate a split unless it is done; return whether its score is enough for the full evaluation."""
        done = self._phases.results.get(domain.name, {}).get(split)
        if done is not None and (done.complete or not full):
            return done.complete or domain.first_stage.is_passed(done.mean)
        result = None if full else self._known(domain, split)
        if result is None:
            samples = samples_of(self._context, domain) if full else domain.first_stage.staged_samples
            self._answer(domain, split, samples)
            folder = self._folder / domain.evaluation(split)
            result = self._judge.score(domain, split, folder, self._labelled(domain, split, samples), full=full)
        self._phases.keep_split(domain.name, split, result)
        return domain.first_stage.is_passed(result.mean)

    def _known(self, domain: OriginalDomain, split: str) -> SplitResult | None:
        """Return the initial agent's result from the checkout, or None; only for the initial generation."""
        if self._plan.genid != INITIAL:
            return None
        name = domain.evaluation(split)
        source = reference_folder(self._context.layout) / "initial" / name
        score = domain.read_score(source)
        if score is None:
            return None
        with storage_errors(self._folder):
            shutil.copytree(source, self._folder / name, dirs_exist_ok=True)
        self._steps.note(f"{name}: reuse the checkout's results of the initial agent")
        return score_without_answers(domain, score, full=False)

    def _answer(self, domain: OriginalDomain, split: str, samples: int) -> None:
        """Run the harness and copy its files out."""
        options, name = self._context.options, domain.evaluation(split)
        args = commands.with_python(commands.harness(domain, split, samples=samples, workers=options.eval_workers))
        self._trial.run(args, name, options.timeout_eval_s, self._steps.write)
        self._trial.settle()
        copy_files(self._trial.out, self._folder / name, below=name)

    def _labelled(self, domain: OriginalDomain, split: str, samples: int) -> Labelled | None:
        """Add the labels to the table of answers; return None if the domain has no table."""
        if not domain.datasets:
            return None
        path = f"{domain.evaluation(split)}/{TABLE}"
        try:
            said = read_below(self._trial.out, path, self._judge.table_limit(domain, split))
        except PatchError as error:
            raise GenerationFailedError("evaluation", f"{domain.evaluation(split)}: {error}") from error
        labelled = self._judge.label(domain, split, said, samples)
        write_file(self._folder / path, labelled.table)
        return labelled
