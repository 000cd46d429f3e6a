"""Evaluate an agent on domains: answers come out of a container, scores are made here on the host.

Imports the domain seam, predictions, contract and storage. What runs in the container gets a task's inputs and
nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.domain import Domain, Score, Split, Task
from hyperruntime.loop.contract import HARNESS, OUT, Contract
from hyperruntime.loop.failures import GenerationFailedError, last_line
from hyperruntime.loop.layout import FIRST_SPLIT, PREDICTIONS, REPORT, SELECTED_SPLIT, evaluation_name
from hyperruntime.loop.place import Place
from hyperruntime.loop.predictions import (
    MAX_PREDICTION_BYTES,
    Prediction,
    PredictionReader,
    prediction_to_json,
)
from hyperruntime.loop.storage import json_document, json_line, write_file
from hyperruntime.spec import ExecResult

HARNESS_FILE = "harness.py"
HISTORY_FOLDER = "agent_evals"
_SKIPPED_SPLIT = "test"
_HARNESS_ARGS = ("python3", "-B", f"{HARNESS}/{HARNESS_FILE}")


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


def evaluated_splits(domain: Domain) -> tuple[Split, ...]:
    """Return the splits that a run evaluates: ``test`` is for whoever reports on a finished run."""
    return tuple(split for split in domain.splits if split.name != _SKIPPED_SPLIT)


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
        self,
        place: Place,
        contract: Contract,
        harness_dir: Path,
        *,
        timeout_s: float,
        on_output: Callable[[bytes], None],
    ) -> None:
        """Evaluate in a container.

        Args:
            place: has the agent's state and ``harness_dir`` in it. contract: names the task agent.
            harness_dir: on the host; what is written here appears inside. timeout_s: seconds each call may take.
            on_output: takes what agents print.
        """
        self.results: Results = {}
        self._place, self._contract, self._harness_dir = place, contract, harness_dir
        self._timeout_s, self._on_output = timeout_s, on_output

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
        predictions = (*done, *self._ask(domain, split, wanted[len(done) :]))
        scores = tuple(_score(domain, task, said) for task, said in zip(wanted, predictions, strict=True))
        mean = float(domain.report(split.name, scores)["score"])
        result = SplitResult(predictions=predictions, scores=scores, total=len(tasks), mean=mean)
        self.results.setdefault(domain.name, {})[split.name] = result
        return result

    def check_load(self, timeout_s: float) -> None:
        """Import what the agent must still have.

        Raises:
            GenerationFailedError: something cannot be imported, or that takes too long.
            ContainerLostError: the container ended meanwhile.
        """
        args = [*_HARNESS_ARGS, "check", *self._contract.load]
        result = self._place.exec(args, timeout_s=timeout_s, on_output=lambda _, chunk: self._on_output(chunk))
        if result.timed_out:
            raise GenerationFailedError("does-not-load", f"the load check took more than {timeout_s:g} s")
        if result.exit_code != 0:
            raise GenerationFailedError("does-not-load", last_line(result.stderr, "the load check failed"))

    def _ask(self, domain: Domain, split: Split, tasks: Sequence[Task]) -> tuple[Prediction, ...]:
        if not tasks:
            return ()
        name = evaluation_name(domain.name, split.name)
        self._write_spec(self._harness_dir / f"{name}.json", domain, tasks)
        reader = PredictionReader((task.id for task in tasks), self._on_output)
        args = [*_HARNESS_ARGS, "tasks", f"{HARNESS}/{name}.json", f"{OUT}/{name}"]
        result = self._place.exec(args, timeout_s=self._timeout_s, on_output=reader.take)
        _check_end(result, reader, f"{domain.name} {split.name}", self._timeout_s)
        missing = f"the evaluation ended before this task was answered (exit code {result.exit_code})"
        return tuple(reader.predictions.get(task.id) or Prediction(task_id=task.id, error=missing) for task in tasks)

    def _write_spec(self, path: Path, domain: Domain, tasks: Sequence[Task]) -> None:
        spec = {
            "agent": self._contract.task_agent,
            "model": None,
            "task_timeout_s": domain.task_timeout_s,
            "max_prediction_bytes": MAX_PREDICTION_BYTES,
            "tasks": [{"id": task.id, "inputs": dict(task.inputs)} for task in tasks],
        }
        write_file(path, json.dumps(spec).encode())


def install_harness(folder: Path) -> None:
    """Write the program that runs tasks to a directory of the host."""
    source = resources.files("hyperruntime.loop") / HARNESS_FILE
    write_file(folder / HARNESS_FILE, source.read_bytes())


def write_results(folder: Path, domain: Domain, split: str, result: SplitResult) -> None:
    """Write the predictions and the report of one split.

    Raises:
        StorageError: they cannot be written.
    """
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


def _score(domain: Domain, task: Task, said: Prediction) -> Score:
    if said.error is not None:
        return Score(task_id=task.id, value=0.0, valid=False, detail=said.error)
    return domain.score(task, said.value)


def _check_end(result: ExecResult, reader: PredictionReader, what: str, timeout_s: float) -> None:
    if result.timed_out:
        raise GenerationFailedError("timeout", f"the evaluation of {what} took more than {timeout_s:g} s")
    if result.exit_code != 0 and not reader.predictions:
        why = last_line(result.stderr, f"exit code {result.exit_code}")
        raise GenerationFailedError("evaluation", f"no task of {what} could be run: {why}")
