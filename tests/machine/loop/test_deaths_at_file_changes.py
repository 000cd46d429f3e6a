"""A run whose process dies at any change of a file is resumed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import resume_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.record import GenerationRecord
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository

ROOT = Path(__file__).parents[3]
CRASH = """
import os, sys

agent, parent, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
changes = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir"}
seen = 0


def count(event, arguments):
    global seen
    if event == "open":
        path, _, flags = arguments
        if not isinstance(path, str) or not flags & (os.O_WRONLY | os.O_RDWR):
            return
    elif event not in changes:
        return
    if parent in str(arguments[0]):
        seen += 1
        if seen == at:
            os._exit(9)


from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import start_run
from tests.doubles.fake_runtime import FakeRuntime

sys.addaudithook(count)
options = GenerateOptions(domains="circle_packing", agent=agent, run_id="r", output_dir_parent=parent,
                          seed=11, max_generation=2, eval_samples=(1,))
start_run(FakeRuntime(), plan_run(options))
print(seen)
"""


def dies_and_is_resumed(folder: Path, agent: Path, at: int) -> list[GenerationRecord]:
    """Start a run that dies at the change of a file with this number; resume it and return its
    generations.
    """
    assert crash(folder, agent, at).returncode == 9
    run_dir = folder / "generate_r"
    before = load_run(run_dir).generations
    after = resume_run(FakeRuntime(), plan_resume(run_dir)).generations
    assert [record.genid for record in after[: len(before)]] == [record.genid for record in before]
    assert [record.genid for record in after] == ["initial", 1, 2]
    assert load_run(run_dir).problems == ()
    return list(after)


def crash(folder: Path, agent: Path, at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CRASH, str(agent), str(folder), str(at)]
    env = {**os.environ, "TMPDIR": str(agent.parent), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_a_run_that_dies_at_a_file_change_is_resumed_completely(tmp_path: Path) -> None:
    after = dies_and_is_resumed(tmp_path / "run", make_agent_repository(tmp_path / "agent"), at=100)
    assert [record.failure for record in after] == [None] * 3


@pytest.mark.slow
def test_a_run_that_dies_at_any_file_change_is_resumed_completely(tmp_path: Path) -> None:
    agent = make_agent_repository(tmp_path / "agent")
    total = int(crash(tmp_path / "whole", agent, 0).stdout.splitlines()[-1])
    whole = load_run(tmp_path / "whole" / "generate_r").generations
    for at in range(total // 5, total, total // 7):
        after = dies_and_is_resumed(tmp_path / str(at), agent, at)
        assert [(r.genid, r.parent, r.commit, r.score) for r in after] == [
            (r.genid, r.parent, r.commit, r.score) for r in whole
        ]
