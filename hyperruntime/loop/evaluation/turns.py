"""The host's side of a task with several turns: reads the agent's answers and sends the inputs of the next turn.

The agent is untrusted: each turn accepts one line, and a task ends when its agent does not read its inputs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from hyperruntime.domain import Dialogue
from hyperruntime.loop.evaluation.predictions import LineReader

MAX_TURN_BYTES = 60 * 1024


class Conversation:
    """One task in progress; a context manager that closes its pipe and its dialogue.

    Attributes:
        source: read end of the pipe from which the harness reads the turns.
        problem: why the task ended early, or None.
        turns: number of turns that the agent answered.
    """

    def __init__(self, task_id: str, dialogue: Dialogue, on_error_output: Callable[[bytes], None]) -> None:
        """Open the pipe; nothing is sent yet.

        Args:
            task_id: id of the task.
            dialogue: the task on the host.
            on_error_output: called with each piece of the harness's standard error.
        """
        self.problem: str | None = None
        self.turns = 0
        self._task_id, self._dialogue = task_id, dialogue
        self._reader = LineReader(self._take, on_error_output)
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

    def take(self, stream: str, chunk: bytes) -> None:
        """Process a piece of a stream of the harness, ``"stdout"`` or ``"stderr"``."""
        self._reader.take(stream, chunk)

    def outcome(self, exit_code: int) -> Any:  # noqa: ANN401 - any JSON value
        """Return the dialogue's outcome after the harness has ended with ``exit_code``."""
        unfinished = self._writable >= 0
        return self._dialogue.outcome(self.problem or (f"exit code {exit_code}" if unfinished else None))

    def _take(self, value: dict[str, Any]) -> None:
        if self._writable < 0:
            return
        if value.get("task_id") != self._task_id or value.get("turn") != self.turns:
            return
        self.turns += 1
        if value.get("error") is not None:
            self._end(str(value["error"])[:1000])
            return
        told = self._dialogue.reply(value.get("prediction"))
        if told is None:
            self._end()
        else:
            self._send(told)

    def _send(self, inputs: Mapping[str, Any]) -> None:
        line = json.dumps({"inputs": dict(inputs)}).encode() + b"\n"
        if len(line) > MAX_TURN_BYTES:
            raise ValueError(f"a turn's inputs have {len(line)} bytes; at most {MAX_TURN_BYTES} are allowed")
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
