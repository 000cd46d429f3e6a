"""Hostile answers: such an answer scores nothing, does no other harm, and the run continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from hyperruntime import Runtime
from hyperruntime.git.command import git
from tests.command import hyperrun
from tests.doubles.fake_runtime import make_agent_repository
from tests.doubles.packages import install_plugin
from tests.runs import check_no_container_is_left, run_name
from tests.runs import start as start_run

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
SOLVED = (ROOT / "domains/hyperdomain_polyglot/exercises/inward_spiral/solution.py").read_text()
AGENT = """
import json, os, signal, sys, threading, time

class TaskAgent:
    def __init__(self, model=None, chat_history_file=None):
        self.turns = 0

    def forward(self, inputs):
        self.turns += 1
{body}
"""
FORGE = """
import json, os, sys
lines = b"".join(json.dumps({"number": n, "value": v}).encode() + b"\\n" for n in range(12) for v in (True, [], "AAA"))
verdict = b'{"ran": 12, "passed": 12, "canary": true}\\n'
for path in ("/proc/1/fd/1", f"/proc/{os.getppid()}/fd/1", "/proc/self/fd/1", "/dev/stdout", "/dev/tty"):
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(verdict + lines)
    except OSError:
        pass
os._exit(0)
"""
WRITE = """
import os
for top in ("/workspace/given", "/", "/etc", "/usr/bin", "/proc/1", "/sys", "..", "/run/hyperruntime"):
    for name in ("harm", "fold_ranges.py", "_caller.py", "passwd"):
        try:
            with open(os.path.join(top, name), "w") as file:
                file.write("harm")
        except OSError:
            pass
"""
PROGRAMS = {
    "column_name": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        "
    "pass\n",
    "merge_spans": FORGE,
    "first_fault": "import time\ntime.sleep(3600)\n",
    "fold_ranges": WRITE,
    "fill_lines": "import os\nfor _ in range(400):\n    os.write(1, b'x' * 500_000)\n    os.write(2, "
    "b'y' * 500_000)\n",
    "build_order": "import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(3600)\n",
    "stack_machine": "import os, signal\nos.kill(-1, signal.SIGKILL)\nos.kill(1, "
    "signal.SIGKILL)\nos.kill(0, 9)\n",
    "inward_spiral": SOLVED,
}
ANSWERS = (
    "return 'x' * 4_000_000",
    "return 'x' * 9_000_000",
    "deep = []\nfor _ in range(900):\n    deep = [deep]\nreturn deep",
    "deep = []\nfor _ in range(100_000):\n    deep = [deep]\nreturn deep",
    "return {'label': 'high', 'urgency': ['high'] * 100_000}",
    "return float('nan')",
    "return 10 ** 4000",
    "return 10 ** 100_000",
    "return '\\ud800 high'",
    "return b'high'",
    "return {('a', 'b'): 1}",
    "return ['high']",
)
EPISODE = "babyai:GoToLocal-v0"
TURNS = (
    "'go forward' * 300_000",
    "[[[[]]]] * 10_000",
    "float('inf')",
    "{'action': 'go forward', 'turn': 99}",
    "'\\udcff\\x00\\x1b[2J'",
    "-1",
    "None",
    "['go forward', 'go forward']",
    "'toggle; reset'",
)


def make_agent(path: Path, body: str) -> Path:
    """Make an agent whose ``forward`` has this body."""
    agent = make_agent_repository(path)
    (agent / "task_agent.py").write_text(AGENT.format(body=indent(body, " " * 8)))
    git(["-C", str(agent), "commit", "-q", "-a", "-m", "means harm"])
    return agent


@pytest.fixture
def evaluate(tmp_path: Path, runtime: Runtime, base_image: str) -> Iterator[Callable[..., Path]]:
    """Yield a function that evaluates such an agent and returns its results directory; no container
    may be left.
    """

    def start(body: str, domain: str, **options: Any) -> Path:
        agent = make_agent(tmp_path / "agent", body)
        options |= {"domains": domain, "eval_samples": (1,) if domain == EPISODE else None}
        summary = start_run(
            runtime, tmp_path, agent=str(agent), image=base_image, max_generation=0, **options
        )
        assert summary.generations[0].failure is None, summary.generations[0].detail
        return Path(summary.run_dir) / "gen_initial"

    yield start
    check_no_container_is_left(runtime, run_name(tmp_path))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_hostile_programs_score_nothing_and_a_correct_program_scores(
    evaluate: Callable[..., Path],
) -> None:
    body = f"(name,) = inputs['files']\nreturn {{'files': {{name: {PROGRAMS!r}[name[:-3]]}}}}, []"
    results = evaluate(body, "polyglot", skip_staged_eval=True)
    report = json.loads((results / "polyglot_eval/report.json").read_text())
    assert report["total_resolved_ids"] == ["inward_spiral"]
    assert set(report["total_unresolved_ids"]) == set(PROGRAMS) - {"inward_spiral"}
    assert json.loads((results / "polyglot_eval_val/report.json").read_text())["total"] == 4, (
        "the run continued"
    )


def test_an_answer_that_is_not_a_label_is_invalid_and_affects_no_other(
    evaluate: Callable[..., Path], tmp_path: Path
) -> None:
    cases = "".join(
        f"if inputs['row'] == {number}:\n{indent(text, '    ')}\n"
        for number, text in enumerate(ANSWERS)
    )
    rows = [{"row": number, "label": "high"} for number in range(len(ANSWERS))] + [
        {"row": -1, "label": "low"}
    ]
    (tmp_path / "hostile.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = evaluate(f"{cases}return 'low', []", f"table:{tmp_path}/hostile.jsonl")
    report = json.loads((results / "hostile_eval/report.json").read_text())
    assert (report["valid"], report["total"], report["total_correct"]) == (1, len(rows), 1)
    assert [line["score"] for line in lines_of(results / "hostile_eval")] == [0.0] * len(
        ANSWERS
    ) + [1.0]


def test_an_episode_counts_each_invalid_turn_as_a_failed_action(
    evaluate: Callable[..., Path],
) -> None:
    said = f"said = [{', '.join(TURNS)}]"
    then = "['go forward', 'go forward', 'turn right'][self.turns - 1 - len(said)]"
    results = evaluate(
        f"{said}\nreturn (said[self.turns - 1] if self.turns <= len(said) else {then}), []", EPISODE
    )
    (line,) = lines_of(results / "babyai_eval")
    assert (line["prediction"]["failed_actions"], line["score"]) == (len(TURNS), 1.0)
    assert all(len(action) <= 40 for action in line["prediction"]["actions"])


def test_an_agent_gains_no_turns_by_writing_past_the_harness(evaluate: Callable[..., Path]) -> None:
    body = """
turns = [{"task_id": t, "turn": n, "prediction": p, "error": None} for t in ("GoToLocal-v0.train-0", "x", None, [])
         for n in (-1, 0, 7, 10 ** 30, "0", None, [], True) for p in ("turn left",)]
junk = b"[" * 100_000 + b"\\n" + b"\\xff\\x00{}\\n" * 1000 + b"x" * 9_000_000 + b"\\n"
for path in (f"/proc/{os.getppid()}/fd/1", f"/proc/{os.getppid()}/fd/3", "/proc/1/fd/1"):
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(junk)
            for turn in turns if self.turns == 5 else ():
                file.write(json.dumps(turn).encode() + b"\\n")
    except OSError:
        pass
return "toggle", []"""
    results = evaluate(body, EPISODE, timeout_eval_s=60)
    (line,) = lines_of(results / "babyai_eval")
    assert line["prediction"]["turns"] == 64
    assert set(line["prediction"]["actions"]) <= {"toggle", "turn left"}


DIALOGUE = '''
"""The domain ``parrot``: the agent must repeat each message."""

import hashlib

from hyperruntime.domain import Score, Split, Task, mean_report

TURNS = 300


class Talk:
    def __init__(self, kind):
        self.kind, self.turns, self.right = kind, 0, 0

    def told(self):
        text = chr(0x1F99C) + "\\n\\r\\x00\\u2028" + "z" * (self.turns * 190)
        return {"kind": self.kind, "text": text, "turn": self.turns}

    def begin(self):
        return self.told()

    def reply(self, prediction):
        text = self.told()["text"]
        self.right += prediction == [hashlib.sha256(text.encode()).hexdigest(), text * 2]
        self.turns += 1
        return None if self.turns == TURNS else self.told()

    def outcome(self, problem):
        return {"problem": problem, "turns": self.turns, "right": self.right}

    def close(self):
        pass


class Parrot:
    name = "parrot"
    description = "say it again"
    splits = (Split(name="train"),)
    image = "base"
    needs_gpu = False
    agent = "llm"
    protected_paths = ()
    task_timeout_s = 15.0

    def tasks(self, split, limit=None):
        kinds = ("good", "hangs", "exits", "raises", "kills", "again")
        return tuple(Task(id=kind, inputs={}) for kind in kinds)[:limit]

    def dialogue(self, task):
        return Talk(task.id)

    def score(self, task, prediction):
        return Score(task_id=task.id, value=prediction["right"] / TURNS, valid=prediction["problem"] is None)

    def report(self, split, scores):
        return mean_report(self.name, split, scores)

    def picture(self, task, prediction):
        return None
'''
PARROT = """
import hashlib
kind = inputs["kind"]
if self.turns == 3:
    if kind == "hangs":
        time.sleep(3600)
    if kind == "exits":
        os._exit(0)
    if kind == "raises":
        raise ValueError("enough")
    if kind == "kills":
        os.kill(os.getppid(), 9)
assert inputs["turn"] == self.turns - 1
return [hashlib.sha256(inputs["text"].encode()).hexdigest(), inputs["text"] * 2], []
"""


@pytest.mark.slow
def test_a_dialogue_passes_every_turn_unchanged_and_ends_for_an_agent_that_stops(
    tmp_path: Path, runtime_name: str, base_image: str
) -> None:
    plugin = tmp_path / "plugin"
    install_plugin(plugin, "parrot", "[hyperruntime.domains]\nparrot = parrot:Parrot\n", DIALOGUE)
    agent = make_agent(tmp_path / "agent", PARROT)
    done = hyperrun(
        "--runtime", runtime_name, "generate", "--domains=parrot", f"--agent={agent}",
        f"--image={base_image}", "--max-generation=0", "--run-id=talk",
        f"--output-dir-parent={tmp_path}", env={"PYTHONPATH": str(plugin)}, timeout_s=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = lines_of(tmp_path / "generate_talk/gen_initial/parrot_eval")
    said = {line["task_id"]: line["prediction"] for line in lines}
    whole = {"problem": None, "turns": 300, "right": 300}
    assert said["good"] == said["again"] == whole
    assert [said[kind]["right"] for kind in ("hangs", "exits", "raises", "kills")] == [2, 2, 2, 2]
    assert "more than 15 s" in said["hangs"]["problem"]
    assert "without an answer" in said["exits"]["problem"]
    assert said["raises"]["problem"] == "ValueError: enough"
    assert "exit code 137" in said["kills"]["problem"]
