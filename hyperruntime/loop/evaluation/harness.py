"""Run an agent's tasks inside a container; uses only the standard library, because hyperruntime is
not installed there.

Usage::

    python3 -B harness.py check  MODULE:NAME ...
    python3 -B harness.py tasks  SPEC.json HISTORY_FOLDER
    python3 -B harness.py turns  SPEC.json HISTORY_FOLDER

``tasks`` writes one JSON line per task to standard output:
``{"task_id", "prediction", "error", "duration_s"}``. Each task runs in its own process, forked
before the agent is imported. So a task that hangs, exits or leaves threads behind does not affect
other tasks. ``workers`` tasks run at once. The agent's output goes to standard error. The container
has no labels; the host computes the scores.

``turns`` runs one task with several turns. Each line of standard input, ``{"inputs"}``, is a turn
of the same agent object. The answer is a line as above with the number of the ``turn``.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TextIO

_CHUNK = 1 << 16
_DESCRIPTORS = 256
_MESSAGE_CHARS = 500


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    sys.path.insert(0, os.getcwd())
    if arguments[0] == "check":
        return check(arguments[1:])
    with open(arguments[1], encoding="utf-8") as file:
        spec = {**json.load(file), "history_dir": arguments[2]}
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.makedirs(spec["history_dir"], exist_ok=True)
    if arguments[0] == "turns":
        converse(spec, spec["tasks"][0], output)
        return 0
    run_tasks(spec, output)
    return 0


def check(names: list[str]) -> int:
    """Import each ``MODULE:NAME``; return 0, or print the first one that cannot be imported and
    return 1.
    """
    for name in names:
        try:
            load(name)
        except BaseException as error:  # noqa: BLE001 - an agent may raise anything, SystemExit too
            traceback.print_exc()
            print(f"{name} cannot be loaded: {describe(error)}", file=sys.stderr)
            return 1
    return 0


def load(name: str) -> Any:  # noqa: ANN401
    """Return the attribute ``NAME`` of ``MODULE``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def run_tasks(spec: dict[str, Any], output: TextIO) -> None:
    """Run all tasks, ``workers`` of them at once, and write each task's line when the task ends."""
    waiting: list[dict[str, Any]] = spec["tasks"][::-1]
    running: list[Running] = []
    while waiting or running:
        while waiting and len(running) < spec["workers"]:
            running.append(Running(spec, waiting.pop()))
        patience = max(0.0, min(task.deadline for task in running) - time.monotonic())
        ready = select.select([task.readable for task in running], [], [], patience)[0]
        for task in running:
            if task.readable in ready:
                task.take()
            if not task.over and time.monotonic() >= task.deadline:
                task.over = True
                task.problem = "timeout"
            if task.over:
                output.write(json.dumps(task.end()) + "\n")
                output.flush()
        running = [task for task in running if not task.over]


class Running:
    """A task in its own process, until it has answered or must be ended."""

    def __init__(
        self, spec: dict[str, Any], task: dict[str, Any], asked: int | None = None
    ) -> None:
        self.spec = spec
        self.task = task
        self.started = time.monotonic()
        self.deadline = self.started + spec["task_timeout_s"]
        self.data = bytearray()
        self.over = False
        self.problem: str | None = None
        self.readable, writable = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            answer(spec, task, writable, asked)
        os.close(writable)

    def take(self) -> None:
        """Read available output of the process.

        A line feed ends the answer. A process that was left behind may hold the stream open, so its
        end is not needed.
        """
        chunk = os.read(self.readable, _CHUNK)
        self.data += chunk
        self.over = not chunk or chunk.endswith(b"\n")
        if len(self.data) > self.spec["max_prediction_bytes"]:
            self.over = True
            self.problem = f"the answer has more than {self.spec['max_prediction_bytes']} bytes"

    def wait(self) -> None:
        """Read the whole answer, until the deadline."""
        while not self.over:
            left = self.deadline - time.monotonic()
            if left > 0 and select.select([self.readable], [], [], left)[0]:
                self.take()
            else:
                self.over = True
                self.problem = "timeout"

    def line(self) -> dict[str, Any]:
        """Return the output line of the task, from the data that its process wrote or from the
        problem.
        """
        said = {"prediction": None, "error": self.problem}
        if self.problem is None:
            try:
                answered = json.loads(self.data)
                said = {name: answered[name] for name in said}
            except (ValueError, TypeError, KeyError, RecursionError):
                said["error"] = "the task ended without an answer"
        elif self.problem == "timeout":
            said["error"] = f"the task took more than {self.spec['task_timeout_s']:g} s"
        return {"task_id": self.task["id"], **said, "duration_s": time.monotonic() - self.started}

    def end(self) -> dict[str, Any]:
        """Kill the process and its process group, and return the line of its task."""
        os.close(self.readable)
        for target in (os.killpg, os.kill):
            try:
                target(self.child, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        os.waitpid(self.child, 0)
        return self.line()


def converse(spec: dict[str, Any], task: dict[str, Any], output: TextIO) -> None:
    """Pass each line of standard input to the task's process and write its answers."""
    asked, asks = os.pipe()
    running = Running(spec, task, asked)
    os.close(asked)
    try:
        for turn, line in enumerate(sys.stdin.buffer):
            running.data = bytearray()
            running.over = False
            try:
                os.write(asks, line)
            except BrokenPipeError:
                running.over = True
            running.wait()
            said = running.line()
            output.write(json.dumps({**said, "turn": turn}) + "\n")
            output.flush()
            if said["error"] is not None:
                return
    finally:
        running.end()


def answer(
    spec: dict[str, Any], task: dict[str, Any], writable: int, asked: int | None
) -> NoReturn:
    """Run one agent object on a task, or on its turns from ``asked``, and write the answers; does
    not return.
    """
    code = 1
    try:
        os.setsid()
        if asked is not None:
            os.dup2(asked, 0)  # so that it stays open below
        os.closerange(3, writable)  # the harness's file descriptors, above all its output
        os.closerange(writable + 1, _DESCRIPTORS)
        turns: Iterable[dict[str, Any]] = (task,)
        if asked is not None:
            turns = map(json.loads, os.fdopen(os.dup(0), "rb"))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        agent = make_agent(spec, task)
        for turn in turns:
            say(writable, predict(agent, turn["inputs"]))
        code = 0
    except BaseException:  # noqa: BLE001 - an agent may raise anything, SystemExit too
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def say(writable: int, value: dict[str, Any]) -> None:
    """Write a JSON line to the harness."""
    data = json.dumps(value).encode() + b"\n"
    while data:
        data = data[os.write(writable, data) :]


def make_agent(spec: dict[str, Any], task: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a function that calls the agent; its first call imports the agent, as a part of the
    task.
    """
    made: list[Any] = []

    def forward(inputs: Any) -> Any:  # noqa: ANN401
        if not made:
            history = os.path.join(spec["history_dir"], re.sub(r"[^\w.-]", "_", task["id"]) + ".md")
            made.append(load(spec["agent"])(model=spec["model"], chat_history_file=history))
        return made[0].forward(inputs)

    return forward


def predict(forward: Callable[[Any], Any], inputs: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the prediction of the agent, or its error."""
    try:
        result = forward(inputs)
        prediction = result[0] if isinstance(result, tuple) else result
        json.dumps(prediction)
        return {"prediction": prediction, "error": None}
    except BaseException as error:  # noqa: BLE001 - an agent may raise anything, SystemExit too
        traceback.print_exc()
        return {"prediction": None, "error": describe(error)}


def describe(error: BaseException) -> str:
    """Return an exception as one line of at most 500 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE_CHARS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
