"""``hyperrun rollout run`` with the environment ``swe``: a model that repairs, and models that do
not (R1).
"""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.host.process import run_process
from hyperruntime.testing.model import ModelReply, Request, calls, says, scripted_model
from tests.params import first_quick

pytestmark = pytest.mark.engine
TASKS = ("split-bill", "title-slugs")


def mend(request: Request) -> ModelReply:
    """Apply the shipped solution of the task that the first message names; end after one tool
    call.
    """
    messages = request["messages"]
    if messages[-1]["role"] == "tool":
        return says("done")
    task = next(name for name in TASKS if name in str(messages[0]["content"]))
    row = json.loads(
        resources.files("hyperenvironment_swe").joinpath("tasks", task, "task.json").read_text()
    )
    return calls(bash={"command": f"cd {task} && git apply - <<'PATCH'\n{row['patch']}PATCH\n"})


def look(request: Request) -> ModelReply:
    """List the files, then end."""
    return (
        says("done")
        if request["messages"][-1]["role"] == "tool"
        else calls(bash={"command": "ls -la */*"})
    )


def say_nothing(_: Request) -> ModelReply:
    """Call no tool."""
    return says("it cannot be done")


@pytest.mark.parametrize(
    ("script", "reward", "phase"),
    first_quick((mend, 1.0, "tests"), (look, 0.0, "agent"), (say_nothing, 0.0, "agent")),
    ids=["mends", "looks", "speaks"],
)
def test_one_command_scores_groups(
    script: Any, reward: float, phase: str, runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    """R1, R10: two items, two trajectories each, on the engine under test."""
    with scripted_model(script) as model:
        args = [
            sys.executable,
            "-m",
            "hyperruntime.cli",
            "--runtime",
            runtime_name,
            "rollout",
            "run",
            "--json",
        ]
        args += [
            "--environment",
            "swe",
            "--option",
            f"cache_dir={tmp_path}/cache",
            "--image",
            base_image,
        ]
        args += [
            "--model",
            "scripted",
            "--base-url",
            model.url,
            "--group-size",
            "2",
            "--parallel",
            "2",
        ]
        done = run_process([*args, "--output-dir", str(tmp_path / "run")])
    assert done.exit_code == 0, done.stderr.decode()
    lines = (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["status"] for one in found] == ["scored"] * 4, [one["error"] for one in found]
    assert [(one["reward"], one["verdict"]["phase"]) for one in found] == [(reward, phase)] * 4
    groups = [
        json.loads(line) for line in (tmp_path / "run" / "groups.jsonl").read_text().splitlines()
    ]
    assert sorted((group["item_id"], group["rewards"]) for group in groups) == [
        (name, [reward] * 2) for name in TASKS
    ]
