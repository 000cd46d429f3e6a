"""The domain `speedrun` on real containers with torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hyperruntime import Runtime
from hyperruntime.git.command import git
from tests.doubles.fake_runtime import make_agent_repository
from tests.runs import start as start_run

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

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
text = [name for name in os.listdir() if name.endswith(".bin")]
assert text in (["tokens.bin"], ["contexts.bin", "weights.bin"], ["weights.bin", "contexts.bin"])
"""


class TaskAgent:
    def __init__(self, model=None, chat_history_file=None):
        open(chat_history_file, "w").close()

    def forward(self, inputs):
        program = inputs["files"]["train.py"].replace("STEPS = 100", "STEPS = 20")
        return HOSTILE + program, []
'''


def test_a_model_is_trained_in_one_container_and_asked_in_another(
    tmp_path: Path, runtime: Runtime
) -> None:
    agent = make_agent_repository(tmp_path / "agent")
    (agent / "task_agent.py").write_text(TASK_AGENT)
    git(["-C", str(agent), "commit", "-q", "-a", "-m", "an agent that tries what is forbidden"])
    runtime.images.ensure("torch")
    domains = ("speedrun:600",)
    summary = start_run(runtime, tmp_path, agent=str(agent), domains=domains, max_generation=0)
    folder = Path(summary.run_dir) / "gen_initial/speedrun_600_eval"
    report = json.loads((folder / "report.json").read_text())
    task = report["tasks"]["speedrun-train"]
    assert task["valid"], task["detail"]
    assert 0.01 < report["score"] < 1
