"""Read what the harness says of each task, as untrusted as the agent whose process it ran beside.

A line counts once, for a task that was asked; what is too long, malformed or not asked is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import attrs

MAX_PREDICTION_BYTES = 4 * 1024**2
_MAX_LINE_BYTES = 2 * MAX_PREDICTION_BYTES
_MAX_ERROR_CHARS = 1000


@attrs.frozen(kw_only=True)
class Prediction:
    """An agent's answer to one task.

    Attributes:
        task_id: which one.
        value: JSON value; None where there is none.
        error: why there is none, or None.
        duration_s: seconds the task took, as the harness says.
    """

    task_id: str
    value: Any = None
    error: str | None = None
    duration_s: float = 0.0


class LineReader:
    """Takes a program's output piece by piece, and hands on its standard output line by line."""

    def __init__(self, on_line: Callable[[bytes], None], on_error_output: Callable[[bytes], None]) -> None:
        """Hand lines to one function, and the other stream to another; a line that is too long is left out."""
        self._on_line, self._on_error_output = on_line, on_error_output
        self._line = bytearray()
        self._skipping = False

    def take(self, stream: str, chunk: bytes) -> None:
        """Take a piece of one of the harness's two streams."""
        if stream == "stderr":
            self._on_error_output(chunk)
            return
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._extend(end)
            if not self._skipping:
                self._on_line(bytes(self._line))
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
    """Takes the harness's output piece by piece while it runs.

    Attributes:
        predictions: the answers so far, by task.
        take: takes a piece of one of the harness's two streams.
    """

    def __init__(self, asked: Iterable[str], on_error_output: Callable[[bytes], None]) -> None:
        """Expect one line for each task that was asked."""
        self.predictions: dict[str, Prediction] = {}
        self._asked = frozenset(asked)
        self.take = LineReader(self._take_line, on_error_output).take

    def _take_line(self, line: bytes) -> None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return
        task_id = value.get("task_id") if isinstance(value, dict) else None
        if not isinstance(task_id, str) or task_id not in self._asked or task_id in self.predictions:
            return
        error, duration = value.get("error"), value.get("duration_s")
        self.predictions[task_id] = Prediction(
            task_id=task_id,
            value=value.get("prediction"),
            error=None if error is None else str(error)[:_MAX_ERROR_CHARS],
            duration_s=float(duration) if isinstance(duration, float) and 0 <= duration < 1e9 else 0.0,
        )


def prediction_to_json(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON values; one that JSON cannot hold is left out and said so."""
    value = attrs.asdict(prediction, recurse=False)
    value["prediction"] = value.pop("value")
    try:
        json.dumps(value["prediction"], allow_nan=False)
    except (ValueError, RecursionError):
        value["prediction"] = None
        value["error"] = "the answer holds NaN or infinity, or is nested too deeply, and is not kept"
    return value
