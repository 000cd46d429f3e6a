"""Evaluate an agent on domains: the answers come from a container, the host computes the scores.

The evaluation has stages: a cheap first stage on every domain, then the first splits in full, then
the other splits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from hyperruntime.domain import CertifiedDomain, DomainBase, Score, Split, mean_metrics
from hyperruntime.loop.evaluation.scoring import Scorer
from hyperruntime.loop.evaluation.task_runner import Prediction, TaskRunner, prediction_to_json
from hyperruntime.loop.run_files.layout import (
    FIRST_SPLIT,
    PREDICTIONS,
    REPORT,
    SELECTED_SPLIT,
    certificate_name,
    evaluation_name,
)
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.failures import blaming_answer
from hyperruntime.storage.atomic import json_document, json_line, write_file

HISTORY_FOLDER = "agent_evals"
TEST_SPLIT = "test"


@attrs.frozen(kw_only=True)
class SplitResult:
    """The evaluation of one split.

    Attributes:
        predictions: the answers, in the order of the tasks.
        scores: the scores of the answers, in the same order.
        total: number of tasks in the full evaluation.
        mean: the score that the domain reports for the tasks that were run.
    """

    predictions: tuple[Prediction, ...]
    scores: tuple[Score, ...]
    total: int
    mean: float

    @property
    def complete(self) -> bool:
        """Whether every task was run."""
        return len(self.scores) == self.total

    @property
    def weighted(self) -> float:
        """The mean times the fraction of the tasks that were run."""
        return self.mean * len(self.scores) / self.total if self.total else 0.0

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each metric over the tasks that were run and have it."""
        return mean_metrics(self.scores)


Results = dict[str, dict[str, SplitResult]]
_TIMED_OUT = re.compile(r"the task took more than \S+ s")  # as the harness writes it
OnResult = Callable[[DomainBase, Split, SplitResult], None]


def evaluated_splits(domain: DomainBase, *, test: bool, only: str = "") -> tuple[Split, ...]:
    """Return the splits that a run evaluates.

    Args:
        domain: the domain.
        test: whether to include the split ``test``.
        only: name of the only split; "" means all.
    """
    if only:
        return tuple(split for split in domain.splits if split.name == only)
    return tuple(split for split in domain.splits if test or split.name != TEST_SPLIT)


def selected_split(domain: DomainBase) -> str:
    """Return the split that decides about parents: ``val`` if the domain has it, else ``train``."""
    return (
        SELECTED_SPLIT
        if any(split.name == SELECTED_SPLIT for split in domain.splits)
        else FIRST_SPLIT
    )


def selection_score(domains: Sequence[DomainBase], results: Results) -> float | None:
    """Return the score for parent selection: the mean over the domains; None if a domain has no
    score.

    A domain whose selected split was not evaluated counts with its split ``train``. After the cheap
    first stage alone, a split's mean is multiplied by the fraction of the tasks that were run.

    Args:
        domains: the domains of the run.
        results: results per domain and split.
    """
    values = []
    for domain in domains:
        splits = results.get(domain.name, {})
        result = splits.get(selected_split(domain)) or splits.get(FIRST_SPLIT)
        values.append(None if result is None else result.weighted)
    return mean_score(values)


def split_metrics(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Return the metrics of each domain and split that has some."""
    found = {
        domain: {split: result.metrics for split, result in splits.items() if result.metrics}
        for domain, splits in results.items()
    }
    return {domain: splits for domain, splits in found.items() if splits}


def mean_score(values: Sequence[float | None]) -> float | None:
    """Return the mean of scores; None if there are no scores, or one is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def unanswered(results: Results) -> str:
    """Return how many tasks have no answer, with the most common reason; "" if all have one.

    Such as ``2 of 5 tasks timed out``, or ``5 of 5 tasks failed: NameError: ...``.
    """
    predictions = [
        said
        for splits in results.values()
        for result in splits.values()
        for said in result.predictions
    ]
    errors = [one.error for one in predictions if one.error is not None]
    late = sum(_TIMED_OUT.fullmatch(error) is not None for error in errors)
    other = Counter(error.strip() for error in errors if not _TIMED_OUT.fullmatch(error))
    parts = [f"{late} of {len(predictions)} tasks timed out"] if late else []
    if other:
        reason, count = other.most_common(1)[0]
        failed = other.total()
        named = "" if count == failed else ", the most common reason"
        parts.append(f"{failed} of {len(predictions)} tasks failed{named}: {reason}")
    return "; ".join(parts)


class Evaluator:
    """Evaluates one generation on splits of domains.

    Attributes:
        results: results so far, per domain and split.
    """

    def __init__(
        self, runner: TaskRunner, scorer: Scorer, results: Results, on_result: OnResult
    ) -> None:
        """Use a task runner and a scorer.

        Args:
            runner: gets the answers from the agent.
            scorer: scores the answers.
            results: results from before an interrupt, to which new ones are added.
            on_result: called with each new result of a split.
        """
        self.results = results
        self._runner = runner
        self._scorer = scorer
        self._on_result = on_result

    def run_split(
        self, domain: DomainBase, split: Split, *, samples: int | None, staged: bool
    ) -> SplitResult:
        """Run the remaining tasks of a split and return the whole result.

        Args:
            domain: the domain.
            split: the split of the domain.
            samples: maximum number of tasks; None for all.
            staged: whether to run only the cheap first stage.

        Raises:
            GenerationFailedError: the time limit passed, or no task could be run.
            ContainerLostError: the container ended during the evaluation.
        """
        tasks = domain.tasks(split.name, samples)
        wanted = tasks[: split.staged_samples] if staged else tasks
        known = self.results.get(domain.name, {}).get(split.name)
        done = known.predictions if known else ()
        judged = known.scores if known else ()
        fresh = self._runner.ask(domain, split, wanted[len(done) :])
        predictions = (*done, *fresh)
        scores = (*judged, *self._scorer.score(domain, wanted[len(done) :], fresh))
        with blaming_answer():
            mean = float(domain.report(split.name, scores)["score"])
        result = SplitResult(predictions=predictions, scores=scores, total=len(tasks), mean=mean)
        self.results.setdefault(domain.name, {})[split.name] = result
        if fresh:
            self._on_result(domain, split, result)
        return result


def evaluate_domains(
    evaluator: Evaluator, domains: Sequence[DomainBase], options: GenerateOptions, only: str = ""
) -> bool:
    """Evaluate an agent on all domains; return whether the evaluation stopped after the first
    stage.

    The first stage runs on the first split of every domain. If one domain does not pass, the
    evaluation stops, and a domain without a first stage counts 0. Otherwise all first splits are
    evaluated in full before any later split, so that the agent cannot change files of a first
    split, which ``on_result`` keeps, while it answers a later one.

    Args:
        evaluator: runs the splits and keeps the results.
        domains: the domains, in order.
        options: options of the run.
        only: name of the only split to evaluate, without a first stage; "": all splits of the run.

    Raises:
        GenerationFailedError: the time limit passed, or no task could be run.
        ContainerLostError: the container ended during the evaluation.
    """
    staged = not options.skip_staged_eval and not only
    samples = [options.samples(position) for position in range(len(domains))]
    parts = [evaluated_splits(domain, test=options.eval_test, only=only) for domain in domains]
    asked = tuple(zip(domains, parts, samples, strict=True))
    passed = [
        not staged or _passes(evaluator, domain, splits[0], count)
        for domain, splits, count in asked
    ]
    if not all(passed):
        for domain, splits, count in asked:
            total = len(domain.tasks(splits[0].name, count))
            nothing = SplitResult(predictions=(), scores=(), total=total, mean=0.0)
            evaluator.results.setdefault(domain.name, {}).setdefault(splits[0].name, nothing)
        return True
    for number in range(max(map(len, parts))):
        for domain, splits, count in asked:
            for split in splits[number : number + 1]:
                if number == 0 or not staged or _passes(evaluator, domain, split, count):
                    evaluator.run_split(domain, split, samples=count, staged=False)
    return False


def _passes(evaluator: Evaluator, domain: DomainBase, split: Split, samples: int | None) -> bool:
    known = evaluator.results.get(domain.name, {}).get(split.name)
    if not split.staged_samples or (known is not None and len(known.scores) > split.staged_samples):
        return True  # no first stage, or more than it was run before an interrupt
    result = evaluator.run_split(domain, split, samples=samples, staged=True)
    return split.is_passed(result.mean)


def write_results(folder: Path, domain: DomainBase, split: str, result: SplitResult) -> None:
    """Write the predictions, the report and the certificates of one split; write nothing if no task
    was run.

    Args:
        folder: directory of the generation.
        domain: the domain.
        split: name of the split.
        result: the result to write.

    Raises:
        StorageError: a file cannot be written.
    """
    if not result.scores:
        return
    report = dict(domain.report(split, result.scores))
    if not result.complete:
        report["hyperruntime"] = {
            "staged_only": True,
            "tasks_run": len(result.scores),
            "tasks": result.total,
        }
    lines = (
        json_line(
            {
                **prediction_to_json(said),
                "score": score.value,
                "valid": score.valid,
                "detail": score.detail,
                **({"metrics": dict(score.metrics)} if score.metrics else {}),
            }
        )
        for said, score in zip(result.predictions, result.scores, strict=True)
    )
    target = folder / evaluation_name(domain.name, split)
    write_file(target / PREDICTIONS, b"".join(lines))
    write_file(target / REPORT, json_document(report))
    if isinstance(domain, CertifiedDomain):
        for said, score in zip(result.predictions, result.scores, strict=True):
            if (certificate := domain.certificate(score, said.value)) is not None:
                write_file(target / certificate_name(score.task_id), json_document(certificate))
