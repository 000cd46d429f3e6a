"""The generations that a run makes now: the step of each and its times, as their logs say."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import attrs

from hyperruntime.loop.run_files.layout import LOG, PHASES, Layout
from hyperruntime.storage.run_files import open_run_file

_PART_BYTES = 256 * 1024  # of the beginning and of the end of a log
# As StepLog.run writes it when a step begins.
_STEP = re.compile(rb"^== ([ -~]{1,80})\n   since (\S{1,40})$", re.MULTILINE)


@attrs.frozen(kw_only=True)
class RunningGeneration:
    """A generation that is being made.

    Attributes:
        genid: its id, as text.
        step: its step; "" if its log has too much output since the step began.
        started: when its first step began.
    """

    genid: str
    step: str
    started: datetime

    @property
    def elapsed_s(self) -> float:
        """Seconds since its first step began."""
        return max(0.0, (datetime.now(UTC) - self.started).total_seconds())


def running_generations(run_dir: Path) -> tuple[RunningGeneration, ...]:
    """Return the generations of a run that are being made; of an interrupted run, those that were.

    What cannot be read is left out, because a generation may end at any moment.
    """
    work = Layout(run_dir).work
    names = sorted(path.name.removesuffix(PHASES) for path in work.glob(f"gen_*{PHASES}"))
    found = (_running(work / name / LOG, run_dir) for name in names)
    return tuple(one for one in found if one is not None)


def _running(log: Path, run_dir: Path) -> RunningGeneration | None:
    try:
        with os.fdopen(open_run_file(log, below=run_dir), "rb") as file:
            head = file.read(_PART_BYTES)
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _PART_BYTES))
            tail = file.read(_PART_BYTES)
        first = _STEP.search(head)
        steps = _STEP.findall(tail)
        if first is None:
            return None
        started = datetime.fromisoformat(first[2].decode())
    except (OSError, ValueError):
        return None
    if started.tzinfo is None:
        return None
    step = steps[-1][0].decode() if steps else ""
    return RunningGeneration(genid=log.parent.name.removeprefix("gen_"), step=step, started=started)
