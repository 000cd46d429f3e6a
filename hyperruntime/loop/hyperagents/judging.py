"""Score answers with the repository's own report, in a container without evolved code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.domain import Score
from hyperruntime.errors import AgentError, PatchError
from hyperruntime.loop.evaluation.predictions import Prediction
from hyperruntime.loop.hyperagents import commands
from hyperruntime.loop.hyperagents.domains import OriginalDomain
from hyperruntime.loop.hyperagents.initial import read_dataset
from hyperruntime.loop.hyperagents.labels import Labelled, relabel
from hyperruntime.loop.run_files.layout import REPORT
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.container import AgentContainer
from hyperruntime.loop.workbench.context import RunContext
from hyperruntime.loop.workbench.copy_out import read_file
from hyperruntime.loop.workbench.failures import GenerationFailedError, last_line
from hyperruntime.loop.workbench.step_log import StepLog
from hyperruntime.spec import ExecResult
from hyperruntime.storage.atomic import json_document, storage_errors, write_file
from hyperruntime.units import MIB

TABLE = "predictions.csv"
_TABLE_FACTOR, _TABLE_BYTES = 2, 32 * MIB
_MAX_REPORT_BYTES = 64 * MIB


@attrs.frozen(kw_only=True)
class Judged:
    """The report on a split's answers.

    Attributes:
        score: score of the tasks that were run.
        tasks: number of these tasks.
        predictions: the answers; empty if the domain has no table.
        scores: scores of the answers; empty if the domain has no table.
    """

    score: float
    tasks: int
    predictions: tuple[Prediction, ...] = ()
    scores: tuple[Score, ...] = ()


def run_command(place: AgentContainer, args: list[str], timeout_s: float, name: str, steps: StepLog) -> ExecResult:
    """Run a command of the repository to its end.

    Args:
        place: container of the command.
        args: argv that starts with ``python``.
        timeout_s: time limit in seconds.
        name: name of the command in error messages.
        steps: receives the output.

    Raises:
        GenerationFailedError: the command failed, or the time limit passed.
        ContainerLostError: the container ended before the command did.
    """
    args = commands.with_python(args)
    result = place.exec(args, timeout_s=timeout_s, on_output=lambda _, chunk: steps.write(chunk))
    if result.timed_out:
        raise GenerationFailedError("timeout", f"{name} took more than {timeout_s:g} s")
    if result.exit_code != 0:
        why = last_line(result.stderr, "it wrote nothing on standard error")
        raise GenerationFailedError("evaluation", f"{name} ended with exit code {result.exit_code}: {why}")
    return result


def table_limit(context: RunContext, domain: OriginalDomain, split: str) -> int:
    """Return the largest accepted size of a table of answers, in bytes.

    Raises:
        AgentError: the dataset cannot be read.
    """
    return _TABLE_FACTOR * len(read_dataset(context.layout, domain, split)) + _TABLE_BYTES


def label_answers(
    context: RunContext, domain: OriginalDomain, split: str, said: bytes, samples: int, steps: StepLog
) -> Labelled:
    """Return answers with their labels.

    Args:
        context: context of the run.
        domain: domain of the table.
        split: name of the split.
        said: table that the agent's container wrote.
        samples: number of requested tasks; -1 for all.
        steps: log for missing and surplus answers.

    Raises:
        GenerationFailedError: ``said`` is not a valid table of answers.
        AgentError: the dataset cannot be read.
    """
    dataset, name = read_dataset(context.layout, domain, split), domain.evaluation(split)
    try:
        found = relabel(dataset, said, domain.id_column, samples if samples >= 0 else None)
    except AgentError as error:
        raise GenerationFailedError("evaluation", f"{name}: {error}") from error
    missing = found.answers.count(None)
    if missing or found.ignored:
        steps.note(f"{name}: {missing} tasks without an answer; {found.ignored} rows without a task")
    return found


def judge(
    place: AgentContainer,
    domain: OriginalDomain,
    split: str,
    folder: Path,
    said: Labelled | None,
    options: GenerateOptions,
    steps: StepLog,
) -> Judged:
    """Score an evaluation and write its report.

    Args:
        place: container for scoring, without evolved code.
        domain: the domain.
        split: name of the split.
        folder: directory of the evaluation; receives the report.
        said: answers with labels; None: the report reads all files of ``folder``.
        options: options of the run.
        steps: receives the output.

    Raises:
        GenerationFailedError: the report failed, exceeded its time limit, or has no score.
        ContainerLostError: the container ended before the report did.
    """
    name = domain.evaluation(split)
    target = place.out / name
    shutil.rmtree(target, ignore_errors=True)
    with storage_errors(target):
        if said is None:
            shutil.copytree(folder, target)
        else:
            write_file(target / TABLE, said.table)
    run_command(place, commands.report(domain, split), options.timeout_report_s, f"the report on {name}", steps)
    place.settle()
    value = _read_report(target, name)
    judged = _judged(domain, name, value, said)
    write_file(folder / REPORT, json_document(value))
    return judged


def _read_report(folder: Path, name: str) -> Mapping[str, Any]:
    try:
        data = read_file(folder, REPORT.encode(), _MAX_REPORT_BYTES)
        value = json.loads(data) if data is not None else None
    except (PatchError, ValueError, RecursionError) as error:
        raise GenerationFailedError("evaluation", f"the report on {name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise GenerationFailedError("evaluation", f"the report on {name} was not written")
    return value


def _judged(domain: OriginalDomain, name: str, value: Mapping[str, Any], said: Labelled | None) -> Judged:
    score = domain.score(value)
    if score is None:
        raise GenerationFailedError("evaluation", f"the report on {name} has no valid {domain.score_key}")
    if said is None:
        return Judged(score=score, tasks=domain.staged_samples)
    total = value.get("total")
    if isinstance(total, int) and 0 <= total < len(said.ids):
        score *= total / len(said.ids)  # the report omits tasks without an answer
    passed = value.get("question_ids_passed")
    good = {str(item) for item in passed} if isinstance(passed, list) else set()
    answers = zip(said.ids, said.answers, strict=True)
    return Judged(
        score=score,
        tasks=len(said.ids),
        predictions=tuple(Prediction(task_id=name, value=answer) for name, answer in answers),
        scores=tuple(Score(task_id=name, value=float(name in good), valid=True) for name in said.ids),
    )
