"""Replay in processes that are killed: recorded turns are played back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from hyperruntime.json_values import json_object
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, read_trajectories
from hyperruntime.rollout.run_files.turn_journal import TURNS
from tests.doubles.tokenserver import emitted
from tests.doubles.words import COMMANDS, journaled


@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_instants_repeats_no_journaled_model_call(
    kills: int, tmp_path: Path
) -> None:
    run_dir, log, count = tmp_path / "run", tmp_path / "asked", 10 * kills
    rng = random.Random(kills)
    ended = False
    for kill in range(kills + 1):
        known = journaled(run_dir)
        done = {t.item_id for t in read_trajectories(run_dir)}
        log.write_bytes(b"")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.doubles.words", str(run_dir), str(log), str(count)]
        )
        if kill < kills:
            while not log.read_bytes() and process.poll() is None:
                time.sleep(0.01)
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 0.12))
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        ended = process.wait() == 0
        asked = {
            (line.split()[0], int(line.split()[1]))
            for line in log.read_text().splitlines()
            if line.count(" ")
        }
        assert not asked & known
        assert not {who for who, _ in asked} & done
    assert ended
    lines = map(json_object, (run_dir / TRAJECTORIES).read_bytes().splitlines())
    found = Counter(line["id"] for line in lines if line is not None)  # a kill may truncate a line
    assert found == {f"i{number}/0": 1 for number in range(count)}
    assert all(
        t.reward == 1.0 and len(emitted(t.segments)) == 2 * (COMMANDS + 1)
        for t in read_trajectories(run_dir)
    )
    assert max(t.attempts for t in read_trajectories(run_dir)) > 1
    assert not (run_dir / TURNS).exists()
