"""Terminal tasks in a whole rollout: slots, agent loop, tools, tests, groups (T4)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperenvironment_terminal import Terminal
from hyperenvironment_terminal.load import load_tasks
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts, run_rollouts
from hyperruntime.rollout.run_files.run_dir import read_groups, read_trajectories

SOLVED, LEFT = "lost-commit", "log-report"


class Solver:
    """A model that solves one task with its known solution, and only lists files in other tasks."""

    name = "solver"

    def __init__(self) -> None:
        tasks = {task.id: task for task in load_tasks("builtin")}
        solution = tasks[SOLVED].solution
        assert solution is not None
        self._script, self._instruction = (
            (solution / "solve.sh").read_text(),
            tasks[SOLVED].instruction,
        )

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
    ) -> Completion:
        """Call the shell once, then answer that the task is done."""
        instruction = next(message["content"] for message in messages if message["role"] == "user")
        command = f"{self._script}\nsleep 300 &" if instruction == self._instruction else "ls -la"
        message: dict[str, Any] = {"role": "assistant", "content": "done"}
        if messages[-1]["role"] == "user":
            arguments = json.dumps({"command": command})
            call = {
                "id": "1",
                "type": "function",
                "function": {"name": "bash", "arguments": arguments},
            }
            message = {"role": "assistant", "content": "", "tool_calls": [call]}
        return Completion(
            message=message,
            finish_reason="stop",
            usage={"prompt_tokens": 1, "completion_tokens": 1},
        )

    async def close(self) -> None:
        """Do nothing."""


@pytest.mark.slow
def test_groups_of_tasks_are_scored(runtime: hr.Runtime, base_image: str, tmp_path: Path) -> None:
    """T4: two tasks, two parallel trajectories each; the solved task has reward 1, the other 0."""
    if runtime.name == "bubblewrap":
        pytest.skip("bubblewrap refuses the images of tasks; test_terminal.py checks this")
    options = RolloutOptions(
        environment="terminal", items=(SOLVED, LEFT), group_size=2, parallel=4, attempts=1
    )
    parts = Parts(environment=Terminal(), model=Solver())
    asyncio.run(run_rollouts(runtime, options, run_dir=tmp_path / "run", parts=parts))
    found = {trajectory.id: trajectory for trajectory in read_trajectories(tmp_path / "run")}
    assert {name: t.reward for name, t in found.items()} == {
        f"{SOLVED}/0": 1.0, f"{SOLVED}/1": 1.0, f"{LEFT}/0": 0.0, f"{LEFT}/1": 0.0,
    }, [t.error for t in found.values()]  # fmt: skip
    assert {t.verdict["phase"] for t in found.values()} == {"tests"}
    assert not found[f"{LEFT}/0"].tool_errors
    assert sorted(tuple(group.rewards) for group in read_groups(tmp_path / "run")) == [
        (0.0, 0.0),
        (1.0, 1.0),
    ]
