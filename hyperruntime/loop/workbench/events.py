"""The steps of a generation: timed, reported as events and written to the generation's log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

import attrs

from hyperruntime.concurrency.closing import Closing
from hyperruntime.logs import get_logger
from hyperruntime.loop.run_files.layout import LOG
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.storage.atomic import storage_errors
from hyperruntime.storage.run_files import open_to_append
from hyperruntime.units import MIB

log = get_logger(__name__)

_MAX_LOG_BYTES = 64 * MIB
StepState = Literal["start", "done", "failed"]


@attrs.frozen(kw_only=True)
class StepEvent:
    """A step of a generation began or ended.

    Attributes:
        generation: id of the generation, as text.
        step: one of ``generation.STEPS``; ``"ensemble"`` or ``"tasks"`` if that failed in a
            generation that did not; or ``"generation"`` for the end of the whole generation.
        state: ``start``, ``done`` or ``failed``.
        duration_s: duration in seconds; 0 for ``start``.
        score: score of the generation; only with the step ``"generation"``.
        detail: one sentence for people, or "".
    """

    generation: str
    step: str
    state: StepState
    duration_s: float = 0.0
    score: float | None = None
    detail: str = ""


OnEvent = Callable[[StepEvent], None]


class Events:
    """Passes events to one callback, one at a time; exceptions of the callback are logged and
    ignored.
    """

    def __init__(self, on_event: OnEvent | None) -> None:
        """Store the callback; None discards all events."""
        self._on_event = on_event
        self._lock = threading.Lock()

    def emit(self, event: StepEvent) -> None:
        """Call the callback with an event."""
        if self._on_event is None:
            return
        with self._lock:
            try:
                self._on_event(event)
            except Exception as error:  # noqa: BLE001 - the callback is not part of the run
                log.warning("event callback failed", error=repr(error))


class StepLog(Closing):
    """The steps of one generation; a context manager that owns ``generate.log``.

    Attributes:
        durations: seconds per step so far; a repeated step counts with its total time.
        current: the current or last step.
    """

    def __init__(self, genid: GenId, events: Events, folder: Path) -> None:
        """Open ``generate.log`` in an existing folder."""
        self.durations: dict[str, float] = {}
        self.current = ""
        self._genid = str(genid)
        self._events = events
        with storage_errors(folder):
            self._file: BinaryIO = open_to_append(folder / LOG, buffering=0)
        self._left = _MAX_LOG_BYTES
        self._lock = threading.Lock()

    def run(self, name: str, action: Callable[[], None]) -> None:
        """Run and time ``action`` as one step."""
        started = time.monotonic()
        self.current = name
        self._tell(name, "start")
        begun = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.note(f"== {name}\n   since {begun}")  # run_files/follow.py reads it
        try:
            action()
        except BaseException as error:
            self._end(name, "failed", started, str(error))
            raise
        self._end(name, "done", started, "")

    def finished(self, score: float | None, failure: str, started: float) -> None:
        """Report the end of the generation.

        Args:
            score: score of the generation, or None.
            failure: class of its failure; "" for none.
            started: start time by ``time.monotonic()``.
        """
        duration = time.monotonic() - started
        self._tell("generation", "failed" if failure else "done", duration, failure, score)
        log.info(
            "generation done",
            generation=self._genid,
            score=score,
            failure=failure,
            duration_s=duration,
        )

    def failed(self, part: str, detail: str) -> None:
        """Report a part of a step that failed without failing the step.

        Args:
            part: name of the part, which the event has as its step.
            detail: one sentence about the failure.
        """
        self.note(f"== {part}: failed: {detail}")
        self._tell(part, "failed", detail=detail)

    def note(self, text: str) -> None:
        """Write one line to the log."""
        self.write(text.encode(errors="replace") + b"\n")

    def write(self, data: bytes) -> None:
        """Write command output to the log; stop logging after 64 MiB or at a write error."""
        with self._lock:
            if self._left <= 0:
                return
            try:
                self._file.write(data[: self._left])
            except OSError as error:
                log.warning("log not written", generation=self._genid, error=str(error))
                self._left = 0
                return
            self._left -= len(data)
            if self._left <= 0:
                log.warning("log has reached its limit", generation=self._genid)

    def close(self) -> None:
        """Close the log."""
        self._file.close()

    def _end(self, name: str, state: StepState, started: float, detail: str) -> None:
        duration = time.monotonic() - started
        self.durations[name] = round(self.durations.get(name, 0.0) + duration, 4)
        self.note(f"== {name}: {state} after {duration:.3f} s" + (f": {detail}" if detail else ""))
        self._tell(name, state, duration, detail)
        log.info(
            "step ended",
            generation=self._genid,
            step=name,
            state=state,
            duration_s=round(duration, 4),
        )

    def _tell(
        self,
        step: str,
        state: StepState,
        duration_s: float = 0.0,
        detail: str = "",
        score: float | None = None,
    ) -> None:
        event = StepEvent(
            generation=self._genid,
            step=step,
            state=state,
            duration_s=duration_s,
            score=score,
            detail=detail,
        )
        self._events.emit(event)
