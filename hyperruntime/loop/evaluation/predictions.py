"""Read the harness's output, which is untrusted because the harness runs in the agent's container.

The first line of each requested task counts. Lines that are too long, invalid or for other tasks
are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from hyperruntime.json_values import json_object

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
