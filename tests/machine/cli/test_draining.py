"""SIGUSR1 of a batch system: a run takes no new work, and finishes what it has begun."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# It sends itself signals, one when the last one has had its effect.
RUN = """
import os, signal, sys, time
from hyperruntime.cli import signals
from hyperruntime.cli.signals import drained_by_signals
from hyperruntime.cli.signals import Interruption, interrupting, last_signal

here, grace_s, *numbers = map(int, sys.argv[1:])
signals.GRACE_S = grace_s
state = Interruption()
with interrupting(state):
    try:
        with last_signal(state) as number, drained_by_signals(state, here=here) as drain:
            for each in numbers:
                os.kill(os.getpid(), each)
                while not drain.begun:
                    time.sleep(0.01)
            while grace_s > 60:
                time.sleep(1)
        print("drained", number())
    except KeyboardInterrupt:
        print("interrupted", state.signal)
"""
USR1, TERM, INT = "10", "15", "2"


def job(folder: Path, left_s: float) -> dict[str, str]:
    """Return variables of a job of whose end a stand-in of squeue(1) tells."""
    end = datetime.fromtimestamp(time.time() + left_s).isoformat(timespec="seconds")
    (folder / "squeue").write_text(f"#!/bin/sh\necho 'RUNNING {end}'\n")
    (folder / "squeue").chmod(0o755)
    return {"SLURM_JOB_ID": "7", "PATH": f"{folder}:{os.environ['PATH']}"}


def ran(*words: str, env: dict[str, str] | None = None) -> str:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        env={**plain, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize(
    ("signals", "end"),
    [
        ((USR1,), "drained 10"),
        ((USR1, USR1), "drained 10"),
        ((USR1, TERM), "interrupted 10"),
        ((USR1, INT), "interrupted 10"),
        ((TERM,), "interrupted 15"),
    ],
)
def test_sigusr1_begins_a_drain_and_other_signals_interrupt(
    signals: tuple[str, ...], end: str
) -> None:
    assert ran("1", "30", *signals) == end


def test_what_is_not_finished_half_a_minute_before_the_end_is_given_up(tmp_path: Path) -> None:
    assert ran("1", "299", USR1, env=job(tmp_path, 300)) == "interrupted 10"


@pytest.mark.parametrize(("here", "end"), [("1", "interrupted 10"), ("0", "drained 10")])
def test_in_a_step_whose_signals_reach_the_containers_of_the_run_it_is_interrupted(
    here: str, end: str, tmp_path: Path
) -> None:
    assert ran(here, "30", USR1, env={**job(tmp_path, 300), "SLURM_STEP_ID": "0"}) == end
