"""Get the answers of an agent in a container, which receives only the inputs of the tasks.

The agent is untrusted. In a task with several turns, each turn accepts one line, and the task ends
when its agent does not read its inputs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.domain import Dialogue, DialogueDomain, DomainBase, Split, Task
from hyperruntime.json_values import json_object
from hyperruntime.loop.run_files.contract import HARNESS
from hyperruntime.loop.run_files.layout import evaluation_name
from hyperruntime.loop.workbench.container import AgentContainer, StepContext
from hyperruntime.loop.workbench.failures import GenerationFailedError, blaming_answer, last_line
from hyperruntime.spec import ExecResult
from hyperruntime.storage.atomic import write_file

HARNESS_FILE = "harness.py"
_HARNESS_ARGS = ("python3", "-B", f"{HARNESS}/{HARNESS_FILE}")
_GRACE_S = 10.0
MAX_TURN_BYTES = 60 * 1024

OpenContainer = Callable[[str], AbstractContextManager[AgentContainer]]


class TaskRunner:
    """Runs tasks with one generation's agent, in one container or, if the domain requests it, a
    fresh one per task.
    """

    def __init__(
        self,
        context: StepContext,
        container: AgentContainer,
        harness_dir: Path,
        fresh_container: OpenContainer,
        on_output: Callable[[bytes], None],
    ) -> None:
        """Run tasks in a container; write the harness to its directory.

        Args:
            context: context of the run.
            container: container with the agent's state and a mount of ``harness_dir``.
            harness_dir: host directory of the harness and its input files.
            fresh_container: opens another such container; its argument is the name of the
                evaluation.
            on_output: called with the agents' output, from any thread.
        """
        self._options = context.options
        self._contract = context.contract
        self._container = container
        self._harness_dir = harness_dir
        self._specs = count()
        self._fresh_container = fresh_container
        self._on_output = on_output
        harness = resources.files("hyperruntime.loop.evaluation") / HARNESS_FILE
        write_file(harness_dir / HARNESS_FILE, harness.read_bytes())

    def check_load(self) -> None:
        """Import the classes that the contract requires.

        Raises:
            GenerationFailedError: a class cannot be imported, or the time limit passed.
            ContainerLostError: the container ended during the check.
        """
        args = [*_HARNESS_ARGS, "check", *self._contract.load]
        self._container.run(
            args, "the load check", self._options.timeout_check_s, self._on_output, "does-not-load"
        )

    def ask(
        self, domain: DomainBase, split: Split, tasks: Sequence[Task]
    ) -> tuple[Prediction, ...]:
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
        workers = self._options.eval_workers if domain.parallel_tasks else 1
        if not domain.container_per_task and not isinstance(domain, DialogueDomain):
            return self._ask_together(self._container, domain, name, tasks, deadline, workers)
        return parallel_map(
            workers, lambda task: self._ask_one(domain, name, task, deadline), tasks
        )

    def _ask_one(self, domain: DomainBase, name: str, task: Task, deadline: float) -> Prediction:
        with (
            self._fresh_container(name)
            if domain.container_per_task
            else nullcontext(self._container) as container
        ):
            if isinstance(domain, DialogueDomain):
                return self._converse(
                    container, domain.task_timeout_s, domain.dialogue(task), name, task, deadline
                )
            return self._ask_together(container, domain, name, (task,), deadline, 1)[0]

    def _ask_together(
        self,
        container: AgentContainer,
        domain: DomainBase,
        name: str,
        tasks: Sequence[Task],
        deadline: float,
        workers: int,
    ) -> tuple[Prediction, ...]:
        args = self._harness_args("tasks", name, domain.task_timeout_s, tasks, workers)
        reader = PredictionReader((task.id for task in tasks), self._on_output)
        result = container.attempt(args, timeout_s=_left(deadline, name), on_output=reader.take)
        alone = len(tasks) == 1 and domain.container_per_task
        _check_end(result, bool(reader.predictions) or alone, name, self._options.timeout_eval_s)
        missing = (
            f"the evaluation ended before this task was answered (exit code {result.exit_code})"
        )
        return tuple(
            reader.predictions.get(task.id) or Prediction(task_id=task.id, error=missing)
            for task in tasks
        )

    def _converse(
        self,
        container: AgentContainer,
        task_timeout_s: float,
        dialogue: Dialogue,
        name: str,
        task: Task,
        deadline: float,
    ) -> Prediction:
        args = self._harness_args("turns", name, task_timeout_s, (Task(id=task.id, inputs={}),), 1)
        started = time.monotonic()
        patience = task_timeout_s + _GRACE_S
        with Conversation(task.id, dialogue, self._on_output) as talk:
            timeout_s = min(patience, _left(deadline, name))
            result = container.attempt(
                args, timeout_s=timeout_s, on_output=talk.take, source=talk.source
            )
            if result.timed_out and timeout_s < patience:
                _check_end(result, some=True, name=name, timeout_s=self._options.timeout_eval_s)
            value = talk.outcome(result.exit_code)
        return Prediction(task_id=task.id, value=value, duration_s=time.monotonic() - started)

    def _harness_args(
        self, command: str, name: str, task_timeout_s: float, tasks: Sequence[Task], workers: int
    ) -> list[str]:
        """Write the input of the harness to a new file; return the argv of the harness."""
        spec = {
            "agent": self._contract.task_agent,
            "model": self._container.model,
            "workers": workers,
            "task_timeout_s": task_timeout_s,
            "max_prediction_bytes": MAX_PREDICTION_BYTES,
            "tasks": [{"id": task.id, "inputs": dict(task.inputs)} for task in tasks],
        }
        file = f"spec_{next(self._specs)}.json"
        write_file(self._harness_dir / file, json.dumps(spec).encode())
        return [*_HARNESS_ARGS, command, f"{HARNESS}/{file}", f"{self._contract.out}/{name}"]


def _left(deadline: float, name: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise GenerationFailedError("timeout", f"the evaluation {name} exceeded its time limit")
    return left


def _check_end(result: ExecResult, some: bool, name: str, timeout_s: float) -> None:
    if result.timed_out:
        raise GenerationFailedError(
            "timeout", f"the evaluation {name} took more than {timeout_s:g} s"
        )
    if result.exit_code != 0 and not some:
        why = last_line(result.stderr, f"exit code {result.exit_code}")
        raise GenerationFailedError("evaluation", f"no task of {name} could be run: {why}")


class Conversation:
    """One task in progress; a context manager that closes its pipe and its dialogue.

    Attributes:
        source: read end of the pipe from which the harness reads the turns.
        problem: why the task ended early, or None.
        turns: number of turns that the agent answered.
        take: processes a piece of a stream of the harness; see :meth:`LineReader.take`.
    """

    def __init__(
        self, task_id: str, dialogue: Dialogue, on_error_output: Callable[[bytes], None]
    ) -> None:
        """Open the pipe; nothing is sent yet.

        Args:
            task_id: id of the task.
            dialogue: the task on the host.
            on_error_output: called with each piece of the harness's standard error.
        """
        self.problem: str | None = None
        self.turns = 0
        self._task_id = task_id
        self._dialogue = dialogue
        self.take = LineReader(self._take, on_error_output).take
        readable, self._writable = os.pipe()
        os.set_blocking(self._writable, False)
        self.source: BinaryIO = os.fdopen(readable, "rb", buffering=0)

    def __enter__(self) -> Conversation:
        """Send the first turn's inputs."""
        try:
            self._send(self._dialogue.begin())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipe and the dialogue."""
        self._end()
        self.source.close()
        self._dialogue.close()

    def outcome(self, exit_code: int) -> Any:  # noqa: ANN401 - any JSON value
        """Return the dialogue's outcome after the harness has ended with ``exit_code``."""
        unfinished = self._writable >= 0
        problem = self.problem or (f"exit code {exit_code}" if unfinished else None)
        with blaming_answer():
            return self._dialogue.outcome(problem)

    def _take(self, value: dict[str, Any]) -> None:
        if self._writable < 0:
            return
        if value.get("task_id") != self._task_id or value.get("turn") != self.turns:
            return
        self.turns += 1
        if value.get("error") is not None:
            self._end(str(value["error"])[:1000])
            return
        with blaming_answer():
            told = self._dialogue.reply(value.get("prediction"))
        if told is None:
            self._end()
        else:
            self._send(told)

    def _send(self, inputs: Mapping[str, Any]) -> None:
        line = json.dumps({"inputs": dict(inputs)}).encode() + b"\n"
        if len(line) > MAX_TURN_BYTES:
            raise ValueError(
                f"a turn's inputs have {len(line)} bytes; at most {MAX_TURN_BYTES} are allowed"
            )
        try:
            written = os.write(self._writable, line)
        except (BlockingIOError, BrokenPipeError):
            written = 0
        if written != len(line):
            self._end("the agent does not read its inputs")

    def _end(self, problem: str | None = None) -> None:
        """Close the pipe, so that the agent's process reads its end and exits."""
        self.problem = self.problem or problem
        if self._writable >= 0:
            os.close(self._writable)
            self._writable = -1


MAX_PREDICTION_BYTES = 4 * 1024**2
_MAX_LINE_BYTES = 2 * MAX_PREDICTION_BYTES
_MAX_ERROR_CHARS = 1000


@attrs.frozen(kw_only=True)
class Prediction:
    """An agent's answer to one task.

    Attributes:
        task_id: id of the task.
        value: the answer, a JSON value; None if there is no answer.
        error: why there is no answer, or None.
        duration_s: duration of the task in seconds, as reported by the harness.
    """

    task_id: str
    value: Any = attrs.field(default=None, hash=False)
    error: str | None = None
    duration_s: float = 0.0


class LineReader:
    """Reads the JSON objects in a program's standard output, one per line; the output arrives in
    pieces.
    """

    def __init__(
        self, on_value: Callable[[dict[str, Any]], None], on_error_output: Callable[[bytes], None]
    ) -> None:
        """Set the callbacks.

        Args:
            on_value: called with the object of each complete line, {} for other lines; those above
                8 MiB are skipped.
            on_error_output: called with each piece of standard error.
        """
        self._on_value = on_value
        self._on_error_output = on_error_output
        self._line = bytearray()
        self._skipping = False

    def take(self, stream: str, chunk: bytes) -> None:
        """Process a piece of a stream, ``"stdout"`` or ``"stderr"``."""
        if stream == "stderr":
            self._on_error_output(chunk)
            return
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._extend(end)
            if not self._skipping:
                self._on_value(json_object(bytes(self._line)) or {})
            self._line.clear()
            self._skipping = False
        self._extend(rest)

    def _extend(self, piece: bytes) -> None:
        if len(self._line) + len(piece) > _MAX_LINE_BYTES:
            self._skipping = True
            self._line.clear()
        if not self._skipping:
            self._line += piece


class PredictionReader:
    """Reads the harness's output while it runs.

    Attributes:
        predictions: the answers so far, by task id.
        take: processes a piece of a stream; see :meth:`LineReader.take`.
    """

    def __init__(self, asked: Iterable[str], on_error_output: Callable[[bytes], None]) -> None:
        """Accept one line for each requested task.

        Args:
            asked: ids of the requested tasks.
            on_error_output: called with each piece of standard error.
        """
        self.predictions: dict[str, Prediction] = {}
        self._asked = frozenset(asked)
        self.take = LineReader(self._take, on_error_output).take

    def _take(self, value: dict[str, Any]) -> None:
        task_id = value.get("task_id")
        if (
            not isinstance(task_id, str)
            or task_id not in self._asked
            or task_id in self.predictions
        ):
            return
        error = value.get("error")
        duration = value.get("duration_s")
        self.predictions[task_id] = Prediction(
            task_id=task_id,
            value=value.get("prediction"),
            error=None if error is None else str(error)[:_MAX_ERROR_CHARS],
            duration_s=float(duration)
            if isinstance(duration, float) and 0 <= duration < 1e9
            else 0.0,
        )


def prediction_to_json(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON values; an answer that JSON cannot represent is replaced by an
    error.
    """
    value = attrs.asdict(prediction, recurse=False)
    value["prediction"] = value.pop("value")
    try:
        json.dumps(value["prediction"], allow_nan=False)
    except (ValueError, RecursionError):
        value["prediction"] = None
        value["error"] = (
            "the answer contains NaN or infinity, or is nested too deeply, and is not stored"
        )
    return value
