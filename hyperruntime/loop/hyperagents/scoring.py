"""Run commands of the repository, and score answers with its own report, in a container without
evolved code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperruntime.concurrency.closing import Closing
from hyperruntime.domain import Score
from hyperruntime.errors import AgentError, PatchError
from hyperruntime.loop.evaluation.evaluator import SplitResult
from hyperruntime.loop.evaluation.task_runner import Prediction
from hyperruntime.loop.generation.adapter import Attempt
from hyperruntime.loop.hyperagents import commands
from hyperruntime.loop.hyperagents.domains import OriginalDomain
from hyperruntime.loop.hyperagents.initial import add_labels, read_dataset
from hyperruntime.loop.hyperagents.labels import Labelled, relabel
from hyperruntime.loop.run_files.layout import REPORT
from hyperruntime.loop.run_files.options import ALL_SAMPLES
from hyperruntime.loop.workbench.container import AgentContainer, read_file
from hyperruntime.loop.workbench.failures import GenerationFailedError
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import json_document, storage_errors, write_file
from hyperruntime.units import MIB

TABLE = "predictions.csv"
_TABLE_FACTOR = 2
_TABLE_BYTES = 32 * MIB
_ASKING_REPORTS = ("imo_proof",)  # a model grades the proofs
_MAX_REPORT_BYTES = 64 * MIB


def repository_container(
    attempt: Attempt, name: str, *mounts: Mount, models: bool = True
) -> AgentContainer:
    """Return a container for commands of the repository, not started; all its users may write to
    its ``/tmp``.

    Args:
        attempt: the attempt at the generation.
        name: name of its host directory.
        mounts: further mounts.
        models: whether commands may ask models, if the run has any.

    Raises:
        StorageError: the directories cannot be made.
    """
    context = attempt.context
    folder = attempt.private / name
    place = AgentContainer(
        context, attempt.plan, folder, *mounts, out=commands.TMP, env=commands.ENV, models=models
    )
    place.out.chmod(commands.OPEN_MODE)
    return place


class Judge(Closing):
    """Scores answers in a container with the run's root state and the labels; it contains no
    evolved code.
    """

    def __init__(self, attempt: Attempt) -> None:
        """Fill the container's directories and begin to start it.

        Raises:
            RepositoryError: the root state cannot be exported.
            StorageError: a directory or a file cannot be written.
        """
        self._context = attempt.context
        self._steps = attempt.steps
        asks = any(domain.name in _ASKING_REPORTS for domain in self._context.domains)
        self._place = repository_container(attempt, "report", models=asks)
        self._context.store.export(self._context.root, self._place.repo)
        add_labels(self._context.layout, self._place.repo)
        self._place.start_early()

    def close(self) -> None:
        """Remove the container."""
        self._place.close()

    def samples(self, domain: OriginalDomain) -> int:
        """Return how many tasks of a split the full evaluation runs; -1 for all."""
        names = [known.name for known in self._context.domains]
        samples = self._context.options.samples(names.index(domain.name))
        return ALL_SAMPLES if samples is None else samples

    def table_limit(self, domain: OriginalDomain, split: str) -> int:
        """Return the largest accepted size of a table of answers, in bytes.

        Raises:
            AgentError: the dataset cannot be read.
        """
        return _TABLE_FACTOR * len(read_dataset(self._context.layout, domain, split)) + _TABLE_BYTES

    def label(self, domain: OriginalDomain, split: str, said: bytes, samples: int) -> Labelled:
        """Return answers with their labels; log missing and surplus answers.

        Args:
            domain: domain of the table.
            split: name of the split.
            said: table that the agent's container wrote.
            samples: number of requested tasks; -1 for all.

        Raises:
            GenerationFailedError: ``said`` is not a valid table of answers.
            AgentError: the dataset cannot be read.
        """
        dataset = read_dataset(self._context.layout, domain, split)
        name = domain.evaluation(split)
        try:
            found = relabel(dataset, said, domain.id_column, samples if samples >= 0 else None)
        except AgentError as error:
            raise GenerationFailedError("evaluation", f"{name}: {error}") from error
        missing = found.answers.count(None)
        if missing or found.ignored:
            self._steps.note(
                f"{name}: {missing} tasks without an answer; {found.ignored} rows without a task"
            )
        return found

    def score(
        self, domain: OriginalDomain, split: str, folder: Path, said: Labelled | None, *, full: bool
    ) -> SplitResult:
        """Score an evaluation, write its report and return the result.

        Args:
            domain: the domain.
            split: name of the split.
            folder: directory of the evaluation; receives the report.
            said: answers with labels; None: the report reads all files of ``folder``.
            full: whether all tasks were run.

        Raises:
            GenerationFailedError: the report failed, exceeded its time limit, or has no score.
            ContainerLostError: the container ended before the report did.
        """
        name = domain.evaluation(split)
        timeout_s = self._context.options.timeout_report_s
        target = self._place.out / name
        shutil.rmtree(target, ignore_errors=True)
        with storage_errors(target):
            if said is None:
                shutil.copytree(folder, target)
            else:
                write_file(target / TABLE, said.table)
        args = commands.with_python(commands.report(domain, split))
        self._place.run(args, f"the report on {name}", timeout_s, self._steps.write)
        self._place.reclaim_files()
        value = _read_report(target, name)
        result = _result(domain, name, value, said, full=full)
        write_file(folder / REPORT, json_document(value))
        return result


def score_without_answers(domain: OriginalDomain, score: float, *, full: bool) -> SplitResult:
    """Return the result of a split whose answers are not known.

    Args:
        domain: the domain.
        score: score of the tasks that were run, as many as in the first stage.
        full: whether these are all tasks; else the total follows from ``domain.fraction``.
    """
    scores = tuple(
        Score(task_id=str(at), value=score, valid=True)
        for at in range(domain.first_stage.staged_samples)
    )
    return SplitResult(
        predictions=(), scores=scores, total=_total(domain, len(scores), full=full), mean=score
    )


def _total(domain: OriginalDomain, tasks: int, *, full: bool) -> int:
    return tasks if full else round(tasks / domain.fraction)


def _read_report(folder: Path, name: str) -> Mapping[str, Any]:
    try:
        data = read_file(folder, REPORT.encode(), _MAX_REPORT_BYTES)
        value = json.loads(data) if data is not None else None
    except (PatchError, ValueError, RecursionError) as error:
        raise GenerationFailedError(
            "evaluation", f"the report on {name} cannot be read: {error}"
        ) from error
    if not isinstance(value, dict):
        raise GenerationFailedError("evaluation", f"the report on {name} was not written")
    return value


def _result(
    domain: OriginalDomain,
    name: str,
    value: Mapping[str, Any],
    said: Labelled | None,
    *,
    full: bool,
) -> SplitResult:
    score = domain.score_in(value)
    if score is None:
        raise GenerationFailedError(
            "evaluation", f"the report on {name} has no valid {domain.score_key}"
        )
    if said is None:
        return score_without_answers(domain, score, full=full)
    total = value.get("total")
    count = len(said.ids)
    if isinstance(total, int) and 0 <= total < count:
        score *= total / count  # the report omits tasks without an answer
    passed = value.get("question_ids_passed")
    good = {str(item) for item in passed} if isinstance(passed, list) else set()
    answers = zip(said.ids, said.answers, strict=True)
    return SplitResult(
        predictions=tuple(Prediction(task_id=task_id, value=answer) for task_id, answer in answers),
        scores=tuple(
            Score(task_id=task_id, value=float(task_id in good), valid=True) for task_id in said.ids
        ),
        total=_total(domain, count, full=full),
        mean=score,
    )
