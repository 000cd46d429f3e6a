"""Ask an agent in a container for its answers. Imports the domain seam, predictions, contract, dialogue and place.

What runs in the container gets a task's inputs and nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path

from hyperruntime.domain import DialogueDomain, Domain, Split, Task
from hyperruntime.loop.contract import HARNESS, Contract
from hyperruntime.loop.dialogue import Conversation
from hyperruntime.loop.failures import GenerationFailedError, last_line
from hyperruntime.loop.layout import evaluation_name
from hyperruntime.loop.place import Place
from hyperruntime.loop.predictions import MAX_PREDICTION_BYTES, Prediction, PredictionReader
from hyperruntime.loop.storage import write_file
from hyperruntime.spec import ExecResult

HARNESS_FILE = "harness.py"
_HARNESS_ARGS = ("python3", "-B", f"{HARNESS}/{HARNESS_FILE}")
_GRACE_S = 10.0

OpenPlace = Callable[[str], AbstractContextManager[Place]]


class Asker:
    """Asks one generation's agent, in one container or in a fresh one for each task, as the domain wants it."""

    def __init__(
        self,
        place: Place,
        contract: Contract,
        harness_dir: Path,
        *,
        fresh_place: OpenPlace,
        timeout_s: float,
        on_output: Callable[[bytes], None],
    ) -> None:
        """Ask in a container.

        Args:
            place: has the agent's state and ``harness_dir`` in it. contract: names the task agent.
            harness_dir: on the host; what is written here appears inside.
            fresh_place: opens another such place, for the evaluation of that name.
            timeout_s: seconds each split may take. on_output: takes what agents print.
        """
        self._place, self._contract, self._harness_dir = place, contract, harness_dir
        self._fresh_place, self._timeout_s, self._on_output = fresh_place, timeout_s, on_output

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

    def ask(self, domain: Domain, split: Split, tasks: Sequence[Task]) -> tuple[Prediction, ...]:
        """Return the answers to some tasks of a split, in their order.

        Raises:
            GenerationFailedError: it took too long, or nothing could be run.
            ContainerLostError: the container ended meanwhile.
        """
        if not tasks:
            return ()
        deadline = time.monotonic() + self._timeout_s
        name = evaluation_name(domain.name, split.name)
        if not getattr(domain, "container_per_task", False):
            return self._ask_in(self._place, domain, name, tasks, deadline)
        answers: list[Prediction] = []
        for task in tasks:
            with self._fresh_place(name) as place:
                answers += self._ask_in(place, domain, name, (task,), deadline)
        return tuple(answers)

    def _ask_in(
        self, place: Place, domain: Domain, name: str, tasks: Sequence[Task], deadline: float
    ) -> tuple[Prediction, ...]:
        if isinstance(domain, DialogueDomain):
            return tuple(self._converse(place, domain, domain.task_timeout_s, name, task, deadline) for task in tasks)
        self._write_spec(name, domain.task_timeout_s, tasks)
        reader = PredictionReader((task.id for task in tasks), self._on_output)
        result = place.exec(self._args("tasks", name), timeout_s=_left(deadline, name), on_output=reader.take)
        alone = len(tasks) == 1 and getattr(domain, "container_per_task", False)
        _check_end(result, bool(reader.predictions) or alone, name, self._timeout_s)
        missing = f"the evaluation ended before this task was answered (exit code {result.exit_code})"
        return tuple(reader.predictions.get(task.id) or Prediction(task_id=task.id, error=missing) for task in tasks)

    def _converse(
        self, place: Place, domain: DialogueDomain, task_timeout_s: float, name: str, task: Task, deadline: float
    ) -> Prediction:
        self._write_spec(name, task_timeout_s, (Task(id=task.id, inputs={}),))
        started, patience = time.monotonic(), task_timeout_s + _GRACE_S
        with Conversation(task.id, domain.dialogue(task), self._on_output) as talk:
            timeout_s = min(patience, _left(deadline, name))
            result = place.exec(self._args("turns", name), timeout_s=timeout_s, on_output=talk.take, source=talk.source)
            if result.timed_out and timeout_s < patience:
                _check_end(result, some=True, name=name, timeout_s=self._timeout_s)
            value = talk.outcome(result.exit_code)
        return Prediction(task_id=task.id, value=value, duration_s=time.monotonic() - started)

    def _args(self, command: str, name: str) -> list[str]:
        return [*_HARNESS_ARGS, command, f"{HARNESS}/{name}.json", f"{self._contract.out}/{name}"]

    def _write_spec(self, name: str, task_timeout_s: float, tasks: Sequence[Task]) -> None:
        spec = {
            "agent": self._contract.task_agent,
            "model": self._place.model,
            "task_timeout_s": task_timeout_s,
            "max_prediction_bytes": MAX_PREDICTION_BYTES,
            "tasks": [{"id": task.id, "inputs": dict(task.inputs)} for task in tasks],
        }
        write_file(self._harness_dir / f"{name}.json", json.dumps(spec).encode())


def install_harness(folder: Path) -> None:
    """Write the program that runs tasks to a directory of the host."""
    source = resources.files("hyperruntime.loop") / HARNESS_FILE
    write_file(folder / HARNESS_FILE, source.read_bytes())


def _left(deadline: float, name: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise GenerationFailedError("timeout", f"the evaluation {name} took longer than it may")
    return left


def _check_end(result: ExecResult, some: bool, name: str, timeout_s: float) -> None:
    if result.timed_out:
        raise GenerationFailedError("timeout", f"the evaluation {name} took more than {timeout_s:g} s")
    if result.exit_code != 0 and not some:
        why = last_line(result.stderr, f"exit code {result.exit_code}")
        raise GenerationFailedError("evaluation", f"no task of {name} could be run: {why}")
