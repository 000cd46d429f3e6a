"""The harness runs an agent's tasks inside a container: each in its own process, with a
deadline.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

HARNESS = str(resources.files("hyperruntime.loop.evaluation") / "harness.py")

# Runs the harness with a clock that is one day ahead while a condition holds; ``ended`` counts
# ended tasks.
CLOCK = """
import os, sys, time
from select import select
from types import SimpleNamespace
sys.path.insert(0, {folder!r})
import harness
ended, end = 0, harness.Running.end

def count(task):
    global ended
    ended += 1
    return end(task)

harness.Running.end = count
harness.time = SimpleNamespace(monotonic=lambda: time.monotonic() + 86400 * bool({later}))
harness.select = SimpleNamespace(select=lambda r, w, x, timeout_s: select(r, w, x, min(timeout_s, 0.01)))
sys.exit(harness.main(sys.argv[1:]))
"""


def harness(
    folder: Path, body: str, tasks: int = 2, later: str = "False", **changes: Any
) -> list[dict[str, Any]]:
    """Run the harness on an agent whose ``forward`` has this body; return its output lines."""
    text = (
        "class TaskAgent:\n    def __init__(self, model, chat_history_file): pass\n    def "
        "forward(self, inputs):\n"
    )
    (folder / "task_agent.py").write_text(
        text + "".join(f"        {line}\n" for line in body.splitlines())
    )
    spec = {
        "agent": "task_agent:TaskAgent",
        "model": None,
        "task_timeout_s": 20,
        "workers": 1,
        "max_prediction_bytes": 1000,
        "tasks": [{"id": f"t{number}", "inputs": {"n": number}} for number in range(tasks)],
        **changes,
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    clocked = ["-c", CLOCK.format(folder=os.path.dirname(HARNESS), later=later)]
    program = [HARNESS] if later == "False" else clocked
    command = [sys.executable, "-B", *program, "tasks", "spec.json", "histories"]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
    )
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_harness_reports_the_prediction_of_each_task(tmp_path: Path) -> None:
    lines = harness(tmp_path, "print('noise')\nreturn inputs['n'] * 2, ['history']")
    assert [(line["task_id"], line["prediction"], line["error"]) for line in lines] == [
        ("t0", 0, None),
        ("t1", 2, None),
    ]


MEET = """
import os, time
open(f"here {inputs['n']}", "w").close()
for _ in range(2000):
    if len([name for name in os.listdir() if name.startswith("here")]) >= 3:
        return "met", []
    time.sleep(0.01)
raise TimeoutError("alone")
"""


def test_the_harness_runs_as_many_tasks_in_parallel_as_it_has_workers(tmp_path: Path) -> None:
    lines = harness(tmp_path, MEET, tasks=7, workers=3)
    assert {line["task_id"]: line["prediction"] for line in lines} == {
        f"t{number}": "met" for number in range(7)
    }


def test_parallel_tasks_fail_independently_each_with_its_own_error(tmp_path: Path) -> None:
    body = """
import os, time
match inputs["n"]:
    case 0:
        time.sleep(3600)
    case 1:
        os._exit(3)
    case 2:
        return "x" * 5000, []
    case 3:
        while True:
            for number in range(3, 20):
                try:
                    os.write(number, b" ")
                except OSError:
                    pass
            time.sleep(0.01)
return "well", []"""
    lines = {
        line["task_id"]: line
        for line in harness(tmp_path, body, tasks=6, workers=6, later="ended >= 4")
    }
    assert lines["t4"]["prediction"] == lines["t5"]["prediction"] == "well"
    assert "more than 20 s" in lines["t0"]["error"]
    assert "without an answer" in lines["t1"]["error"]
    assert "more than 1000 bytes" in lines["t2"]["error"]
    assert (
        "more than 20 s" in lines["t3"]["error"] or "more than 1000 bytes" in lines["t3"]["error"]
    )


def test_a_task_that_hangs_is_ended_with_its_child_processes(tmp_path: Path) -> None:
    body = (
        "import subprocess, time\nif inputs['n'] == 0:\n    started = "
        "subprocess.Popen(['sleep', '50'])\n    open('hangs', 'w').close(); "
        "time.sleep(50)\nreturn 1, []"
    )
    started = time.monotonic()
    lines = harness(tmp_path, body, later="os.path.exists('hangs') and not ended")
    assert time.monotonic() - started < 30
    assert lines[0]["error"] == "the task took more than 20 s"
    assert lines[1]["prediction"] == 1


def test_the_harness_does_not_wait_for_processes_that_a_task_left(tmp_path: Path) -> None:
    body = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n    "
        "os._exit(0)\nreturn 1, []"
    )
    started = time.monotonic()
    assert [line["prediction"] for line in harness(tmp_path, body)] == [1, 1]
    assert time.monotonic() - started < 30


def test_a_task_cannot_change_the_modules_of_the_next_task(tmp_path: Path) -> None:
    body = (
        "import task_agent\ntask_agent.seen = getattr(task_agent, 'seen', 0) + 1\nreturn "
        "task_agent.seen, []"
    )
    assert [line["prediction"] for line in harness(tmp_path, body)] == [1, 1]


@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        (["task_agent:TaskAgent"], 0, ""),
        (["task_agent:Missing"], 1, "AttributeError"),
        (["missing:X"], 1, "ModuleNotFoundError"),
        (["exits:X"], 1, "SystemExit"),
    ],
)
def test_the_check_command_reports_agents_that_cannot_be_imported(
    tmp_path: Path, names: list[str], code: int, said: str
) -> None:
    (tmp_path / "task_agent.py").write_text("class TaskAgent: pass\n")
    (tmp_path / "exits.py").write_text("import sys; sys.exit(0)\n")
    done = subprocess.run(
        [sys.executable, "-B", HARNESS, "check", *names], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == code
    assert said in done.stderr.decode()


def test_the_harness_needs_only_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("X = 1\n")
    done = subprocess.run(
        [sys.executable, "-I", "-S", HARNESS, "check", "a:X"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr
