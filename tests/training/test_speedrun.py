"""The programs of the domain `speedrun`, run with this machine's torch as in two containers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hyperdomain_speedrun import PROGRAM, Speedrun
from hyperruntime.domain import Score, Trial, TrialResult

FORK = "import os; os.fork()"
START = "import subprocess; subprocess.run(['true'])"
THREAD = "import threading; t = threading.Thread(target=print); t.start(); t.join()"


def judge(domain: Speedrun, program: str, folder: Path) -> Score:
    """Return the score of a program; each trial runs in a directory of its own."""
    task = domain.tasks("train")[0]
    following = domain.trial(task, program)
    while isinstance(following, Trial):
        folder = folder / "next"
        folder.mkdir(parents=True)
        for name, content in following.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        args = [sys.executable, *following.args[1:]]
        done = subprocess.run(args, cwd=folder, capture_output=True, env={"PATH": "/usr/bin:/bin"})
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        result = TrialResult(exit_code=code, stdout=done.stdout, stderr=done.stderr)
        following = (
            domain.verdict(task, program, result)
            if following.then is None
            else following.then(result)
        )
    return following


def start(steps: int) -> str:
    """Return the program to start from, with so many steps."""
    text = Speedrun().tasks("train")[0].inputs["files"][PROGRAM]
    assert "STEPS = 100" in text
    return str(text).replace("STEPS = 100", f"STEPS = {steps}")


def test_a_trained_model_is_better_than_a_guess_each_time_the_same(tmp_path: Path) -> None:
    domain = Speedrun("600")
    scores = [judge(domain, start(10), tmp_path / str(at)) for at in range(2)]
    assert scores[0].valid, scores[0].detail
    assert 0.01 < scores[0].value < 1
    assert scores[0] == scores[1]


@pytest.mark.parametrize("deed", [FORK, START])
def test_a_program_that_starts_a_process_has_no_score(deed: str, tmp_path: Path) -> None:
    score = judge(Speedrun("600"), f"{deed}\n{start(1)}", tmp_path)
    assert (score.valid, score.value) == (False, 0.0)
    assert "PermissionError" in score.detail


def test_a_program_may_start_threads(tmp_path: Path) -> None:
    assert judge(Speedrun("600"), f"{THREAD}\n{start(1)}", tmp_path).valid


def test_a_program_that_trains_on_when_its_model_is_asked_is_ended(tmp_path: Path) -> None:
    late = """
import os
if os.path.exists("weights.bin"):
    while True:
        pass
"""
    score = judge(Speedrun("30"), f"{late}\n{start(1)}", tmp_path)
    assert (score.valid, score.value) == (False, 0.0)
    assert "no valid logits: it used more than 5 processor seconds" in score.detail


def test_a_program_that_uses_more_than_its_budget_is_ended(tmp_path: Path) -> None:
    score = judge(Speedrun("1"), "while True:\n    pass\n", tmp_path)
    assert (score.valid, score.value) == (False, 0.0)
    assert "used more than 1 processor seconds" in score.detail
