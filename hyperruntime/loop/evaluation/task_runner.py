"""Get the answers of an agent in a container, which receives only the inputs of the tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import resources
from itertools import count
from pathlib import Path

from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.domain import Dialogue, DialogueDomain, Domain, Split, Task
from hyperruntime.loop.evaluation.predictions import MAX_PREDICTION_BYTES, Prediction, PredictionReader
from hyperruntime.loop.evaluation.turns import Conversation
from hyperruntime.loop.run_files.contract import HARNESS
from hyperruntime.loop.run_files.layout import evaluation_name
from hyperruntime.loop.workbench.container import AgentContainer
from hyperruntime.loop.workbench.context import RunContext
from hyperruntime.loop.workbench.failures import GenerationFailedError, last_line
from hyperruntime.spec import ExecResult
from hyperruntime.storage.atomic import write_file

HARNESS_FILE = "harness.py"
_HARNESS_ARGS = ("python3", "-B", f"{HARNESS}/{HARNESS_FILE}")
_GRACE_S = 10.0

OpenPlace = Callable[[str], AbstractContextManager[AgentContainer]]


class TaskRunner:
    """Runs tasks with one generation's agent, in one container or, if the domain requests it, a fresh one per task."""

    def __init__(
        self,
        context: RunContext,
        place: AgentContainer,
        harness_dir: Path,
        fresh_place: OpenPlace,
        on_output: Callable[[bytes], None],
    ) -> None:
        """Run tasks in a container.

        Args:
            context: context of the run.
            place: container with the agent's state and a mount of ``harness_dir``.
            harness_dir: host directory of the harness and its input files.
            fresh_place: opens another such container; its argument is the name of the evaluation.
            on_output: called with the agents' output, from any thread.
        """
        self._options, self._contract = context.options, context.contract
        self._place, self._harness_dir, self._specs = place, harness_dir, count()
        self._fresh_place, self._on_output = fresh_place, on_output

    def check_load(self) -> None:
        """Import the classes that the contract requires.

        Raises:
            GenerationFailedError: a class cannot be imported, or the time limit passed.
            ContainerLostError: the container ended during the check.
        """
        args = [*_HARNESS_ARGS, "check", *self._contract.load]
        self._place.check_load(args, "the load check", self._options.timeout_check_s, self._on_output)

    def ask(self, domain: Domain, split: Split, tasks: Sequence[Task]) -> tuple[Prediction, ...]:
        """Return the answers to tasks of a split, in the order of the tasks.

        Args:
            domain: the domain.
            split: the split of the tasks.
            tasks: the tasks to run.

        Raises:
            GenerationFailedError: the time limit passed, or no task could be run.
            ContainerLostError: the container ended during the evaluation.
        """
        if not tasks:
            return ()
        deadline = time.monotonic() + self._options.timeout_eval_s
        name = evaluation_name(domain.name, split.name)
        workers = self._options.eval_workers if getattr(domain, "parallel_tasks", False) else 1
        if not _is_per_task(domain) and not isinstance(domain, DialogueDomain):
            return self._ask_together(self._place, domain, name, tasks, deadline, workers)
        return parallel_map(workers, lambda task: self._ask_one(domain, name, task, deadline), tasks)

    def _ask_one(self, domain: Domain, name: str, task: Task, deadline: float) -> Prediction:
        with self._fresh_place(name) if _is_per_task(domain) else nullcontext(self._place) as place:
            if isinstance(domain, DialogueDomain):
                return self._converse(place, domain.task_timeout_s, domain.dialogue(task), name, task, deadline)
            return self._ask_together(place, domain, name, (task,), deadline, 1)[0]

    def _ask_together(
        self, place: AgentContainer, domain: Domain, name: str, tasks: Sequence[Task], deadline: float, workers: int
    ) -> tuple[Prediction, ...]:
        args = self._args("tasks", name, self._write_spec(domain.task_timeout_s, tasks, workers))
        reader = PredictionReader((task.id for task in tasks), self._on_output)
        result = place.exec(args, timeout_s=_left(deadline, name), on_output=reader.take)
        alone = len(tasks) == 1 and _is_per_task(domain)
        _check_end(result, bool(reader.predictions) or alone, name, self._options.timeout_eval_s)
        missing = f"the evaluation ended before this task was answered (exit code {result.exit_code})"
        return tuple(reader.predictions.get(task.id) or Prediction(task_id=task.id, error=missing) for task in tasks)

    def _converse(
        self, place: AgentContainer, task_timeout_s: float, dialogue: Dialogue, name: str, task: Task, deadline: float
    ) -> Prediction:
        args = self._args("turns", name, self._write_spec(task_timeout_s, (Task(id=task.id, inputs={}),), 1))
        started, patience = time.monotonic(), task_timeout_s + _GRACE_S
        with Conversation(task.id, dialogue, self._on_output) as talk:
            timeout_s = min(patience, _left(deadline, name))
            result = place.exec(args, timeout_s=timeout_s, on_output=talk.take, source=talk.source)
            if result.timed_out and timeout_s < patience:
                _check_end(result, some=True, name=name, timeout_s=self._options.timeout_eval_s)
            value = talk.outcome(result.exit_code)
        return Prediction(task_id=task.id, value=value, duration_s=time.monotonic() - started)

    def _args(self, command: str, name: str, spec: str) -> list[str]:
        return [*_HARNESS_ARGS, command, f"{HARNESS}/{spec}", f"{self._contract.out}/{name}"]

    def _write_spec(self, task_timeout_s: float, tasks: Sequence[Task], workers: int) -> str:
        """Write the input of the harness to a new file; return the file's name."""
        spec = {
            "agent": self._contract.task_agent,
            "model": self._place.model,
            "workers": workers,
            "task_timeout_s": task_timeout_s,
            "max_prediction_bytes": MAX_PREDICTION_BYTES,
            "tasks": [{"id": task.id, "inputs": dict(task.inputs)} for task in tasks],
        }
        name = f"spec_{next(self._specs)}.json"
        write_file(self._harness_dir / name, json.dumps(spec).encode())
        return name


def _is_per_task(domain: Domain | DialogueDomain) -> bool:
    return bool(getattr(domain, "container_per_task", False))


def install_harness(folder: Path) -> None:
    """Write the harness program to a host directory."""
    source = resources.files("hyperruntime.loop.evaluation") / HARNESS_FILE
    write_file(folder / HARNESS_FILE, source.read_bytes())


def _left(deadline: float, name: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise GenerationFailedError("timeout", f"the evaluation {name} exceeded its time limit")
    return left


def _check_end(result: ExecResult, some: bool, name: str, timeout_s: float) -> None:
    if result.timed_out:
        raise GenerationFailedError("timeout", f"the evaluation {name} took more than {timeout_s:g} s")
    if result.exit_code != 0 and not some:
        why = last_line(result.stderr, f"exit code {result.exit_code}")
        raise GenerationFailedError("evaluation", f"no task of {name} could be run: {why}")
