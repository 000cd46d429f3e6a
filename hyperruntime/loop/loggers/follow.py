"""``python -m hyperruntime.loop.loggers.follow``: hand a run to a logger as it grows.

Like the live page, this process only reads the run's journal, so no logger is on the way of a
generation. It ends after its standard input, which ends with the process that makes the run.
Design: docs/design/reports.md#loggers.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

from hyperruntime.loop.loggers.logger import STARTED, LoggedRun, RunLogger, figures_of
from hyperruntime.loop.run_files.archive import best_generation
from hyperruntime.loop.run_files.follow import JournalFollower
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.study import is_study
from hyperruntime.option_fields import to_json
from hyperruntime.registry import load_logger

_LOOK_S = 1.0


def follow_run(
    run_dir: Path,
    logger: RunLogger,
    done_bytes: int,
    is_over: Callable[[], bool],
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Hand the generations of a run to a logger until the run is over.

    Args:
        run_dir: the run directory.
        logger: the logger.
        done_bytes: size of the journal when this process of the run began; generations before are
            not handed over.
        is_over: waits for a moment, and returns whether the run is over.
        on_start: called when the logger has begun with the run.
    """
    follower = JournalFollower(run_dir)
    changed = follower.read_new()
    options = follower.view().options
    old = {genid for end, genid in changed if end <= done_bytes}
    logger.started(
        LoggedRun(
            name=run_dir.resolve().name,
            path=str(run_dir.resolve()),
            study=run_dir.resolve().parent.name if is_study(run_dir.resolve().parent) else "",
            options=to_json(options),
            done=len(old),
        )
    )
    on_start()
    told = set(old)
    while True:
        told |= _tell(follower, logger, [genid for _, genid in changed if genid not in told])
        was_over = is_over()
        changed = follower.read_new()
        if was_over:
            break
    _tell(follower, logger, [genid for _, genid in changed if genid not in told])
    view = follower.view()
    logger.ended("finished" if view.state == "finished" else "interrupted", view.ended)


def _tell(follower: JournalFollower, logger: RunLogger, names: list[GenId]) -> set[GenId]:
    """Hand over generations; return their ids. A line that only changes a generation repeats it."""
    places = {record.genid: step for step, record in enumerate(follower.archive)}
    for name in dict.fromkeys(names):
        step = places[name]
        until = [record for record in follower.archive if places[record.genid] <= step]
        best = best_generation(record for record in until if not record.failure)
        figures = figures_of(follower.archive[name], None if best is None else best.score)
        logger.archived(step, figures)
    return set(names)


def _is_over() -> bool:
    """Wait a second for the end of standard input."""
    ready, _, _ = select.select([0], [], [], _LOOK_S)
    return bool(ready) and not os.read(0, 1024)


def main() -> int:
    """Follow a run; what the logger's library prints is left out, but its error is one line."""
    run_dir, reference, done = sys.argv[1:]
    say = partial(print, STARTED, file=sys.stdout, flush=True)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            follow_run(Path(run_dir), load_logger(reference), int(done), _is_over, say)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of foreign code
        said = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"logger {reference} failed: {said[:400]}; the run goes on without it", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
