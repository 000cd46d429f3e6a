"""The domain `genesis` on real containers with the simulator; needs the image `genesis`, so it is
not a part of `make test-all`.

.venv/bin/pytest tests/genesis --runtime podman
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hyperruntime import Runtime
from hyperruntime.git.command import git
from tests.doubles.fake_runtime import make_agent_repository
from tests.runs import start as start_run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(7200)]

SMALL = """
from hyperdomain_genesis import Genesis


class Small(Genesis):
    _size = (8, 2)
"""
TASK_AGENT = '''
HOSTILE = """
import os, resource, socket
def refused(deed, *words):
    try:
        deed(*words)
    except (OSError, ValueError):
        return
    raise SystemExit(f"{deed} worked")
refused(os.fork)
refused(resource.setrlimit, resource.RLIMIT_CPU, (9999, 9999))
refused(socket.create_connection, ("198.51.100.1", 80), 2)
"""


class TaskAgent:
    def __init__(self, model=None, chat_history_file=None):
        open(chat_history_file, "w").close()

    def forward(self, inputs):
        return {"files": {"reward.py": HOSTILE + inputs["files"]["reward.py"]}}, []
'''


def test_robots_are_trained_in_one_container_and_measured_in_another(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent_repository(tmp_path / "agent")
    (agent / "task_agent.py").write_text(TASK_AGENT)
    git(["-C", str(agent), "commit", "-q", "-a", "-m", "an agent that tries what is forbidden"])
    (tmp_path / "small.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    summary = start_run(
        runtime, tmp_path, agent=str(agent), domains=("./small.py:Small",), max_generation=0
    )
    (name,) = summary.generations[0].scores
    report = json.loads(
        (Path(summary.run_dir) / f"gen_initial/{name}_eval/report.json").read_text()
    )
    task = report["tasks"]["genesis-train"]
    assert task["valid"], task["detail"]
    assert 0 <= report["score"] < 0.5
    assert "on their feet" in task["detail"]
