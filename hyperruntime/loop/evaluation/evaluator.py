"""Evaluate an agent on domains: answers come out of a container, scores are made here on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.domain import Domain, Score, Split
from hyperruntime.loop.evaluation.predictions import (
    Prediction,
    prediction_to_json,
)
from hyperruntime.loop.evaluation.scoring import Scorer
from hyperruntime.loop.evaluation.task_runner import TaskRunner
from hyperruntime.loop.run_files.layout import FIRST_SPLIT, PREDICTIONS, REPORT, SELECTED_SPLIT, evaluation_name
from hyperruntime.storage.atomic import json_document, json_line, write_file

HISTORY_FOLDER = "agent_evals"
TEST_SPLIT = "test"


@attrs.frozen(kw_only=True)
class SplitResult:
    """The evaluation of one split.

    Attributes:
        predictions: the answers, in the order of the tasks.
        scores: their verdicts.
        total: how many tasks the full evaluation has.
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
        """The mean, times the part of the tasks that were run."""
        return self.mean * len(self.scores) / self.total if self.total else 0.0


Results = dict[str, dict[str, SplitResult]]
OnResult = Callable[[Domain, Split, SplitResult], None]


def evaluated_splits(domain: Domain, *, test: bool = False) -> tuple[Split, ...]:
    """Return the splits that a run evaluates; ``test`` is there only where it is asked for, and decides nothing."""
    return tuple(split for split in domain.splits if test or split.name != TEST_SPLIT)


def selected_split(domain: Domain) -> str:
    """Return the split that parents are selected by: ``val`` where there is one, else ``train``."""
    return SELECTED_SPLIT if any(split.name == SELECTED_SPLIT for split in domain.splits) else FIRST_SPLIT


def selection_score(domains: Sequence[Domain], results: Results) -> float | None:
    """Return what parents are selected by: the mean over the domains; None where one has no score.

    A domain whose selected split was not reached counts with its first split. Where only the first, cheap stage
    was run, the mean is weighed with the part of the tasks that were run.
    """
    values = []
    for domain in domains:
        splits = results.get(domain.name, {})
        result = splits.get(selected_split(domain)) or splits.get(FIRST_SPLIT)
        if result is None:
            return None
        values.append(result.weighted)
    return sum(values) / len(values) if values else None


class Evaluator:
    """Runs one generation's tasks in one container.

    Attributes:
        results: per domain and split, what was evaluated so far.
    """

    def __init__(
        self, asker: TaskRunner, judge: Scorer, results: Results | None = None, on_result: OnResult | None = None
    ) -> None:
        """Evaluate what one asks and the other judges.

        Args:
            asker, judge: those. results: what was evaluated before. on_result: called with what is new of a split.
        """
        self.results: Results = {domain: dict(splits) for domain, splits in (results or {}).items()}
        self._asker, self._judge, self._on_result = asker, judge, on_result

    def run_split(self, domain: Domain, split: Split, *, samples: int | None, staged: bool) -> SplitResult:
        """Run what is still to be run of a split and return the whole result.

        Args:
            domain: asks and scores. split: which part of it. samples: how many tasks at most, None for all.
            staged: whether only the first, cheap stage is run.

        Raises:
            GenerationFailedError: it took too long, or nothing could be run.
            ContainerLostError: the container ended meanwhile.
        """
        tasks = domain.tasks(split.name, samples)
        wanted = tasks[: split.staged_samples] if staged else tasks
        known = self.results.get(domain.name, {}).get(split.name)
        done = known.predictions if known else ()
        judged = known.scores if known else ()
        fresh = self._asker.ask(domain, split, wanted[len(done) :])
        predictions = (*done, *fresh)
        scores = (*judged, *self._judge.score(domain, wanted[len(done) :], fresh))
        mean = float(domain.report(split.name, scores)["score"])
        result = SplitResult(predictions=predictions, scores=scores, total=len(tasks), mean=mean)
        self.results.setdefault(domain.name, {})[split.name] = result
        if fresh and self._on_result is not None:
            self._on_result(domain, split, result)
        return result

    def settle_split(self, domain: Domain, split: Split, *, samples: int | None) -> None:
        """Leave a split as it is, for good: one of which nothing was run counts 0."""
        nothing = SplitResult(predictions=(), scores=(), total=len(domain.tasks(split.name, samples)), mean=0.0)
        self.results.setdefault(domain.name, {}).setdefault(split.name, nothing)


def write_results(folder: Path, domain: Domain, split: str, result: SplitResult) -> None:
    """Write the predictions and the report of one split; nothing where nothing of it was run.

    Raises:
        StorageError: they cannot be written.
    """
    if not result.scores:
        return
    report = dict(domain.report(split, result.scores))
    if not result.complete:
        report["hyperruntime"] = {"staged_only": True, "tasks_run": len(result.scores), "tasks": result.total}
    lines = (
        json_line(_prediction_line(said, score)) for said, score in zip(result.predictions, result.scores, strict=True)
    )
    target = folder / evaluation_name(domain.name, split)
    write_file(target / PREDICTIONS, b"".join(lines))
    write_file(target / REPORT, json_document(report))


def _prediction_line(said: Prediction, score: Score) -> dict[str, Any]:
    return {**prediction_to_json(said), "score": score.value, "valid": score.valid, "detail": score.detail}
