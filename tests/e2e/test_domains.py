"""Runs of the shipped domains on real containers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hyperruntime import Runtime
from hyperruntime.git.command import git
from hyperruntime.loop.run.run import RunSummary
from hyperruntime.testing.model import ModelReply, says, scripted_model
from tests.command import hyperrun
from tests.doubles.fake_runtime import make_agent_repository
from tests.doubles.packages import install_plugin
from tests.runs import start as start_run

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
EXERCISES = ROOT / "domains/hyperdomain_polyglot/exercises"
TASK_AGENT = """
import os

SOLUTION = {solution!r}
FORGED = '''
import os
for path in ("/proc/1/fd/1", "/proc/self/fd/1"):
    try:
        with open(path, "w") as file:
            file.write('{{"number": 0, "value": true}}\\\\n' * 9)
    except OSError:
        pass
os._exit(0)
'''
ACTIONS = ["go forward", "dance", "go forward", "turn right"]


class TaskAgent:
    def __init__(self, model=None, chat_history_file=None):
        self.turns = 0
        with open(chat_history_file, "w") as file:
            file.write("begun")

    def forward(self, inputs):
        self.turns += 1
        if "message" in inputs:
            return find_labels(b"urgency") or "high", []
        if "goal" in inputs:
            return [0, 1, 6, 10, 23, 26, 34, 41, 53, 55], []
        if "problem" in inputs:
            return find_labels(b"the parity " + b"of n") or "by induction", []
        if "statement" in inputs:
            return program(inputs), []
        return ACTIONS[self.turns - 1], []


def find_labels(mark):
    '''Return the path of a file with labels, if this process can read one.'''
    for top in ("/workspace", "/tmp", "/root", "/home", "/mnt", "/srv", "/run", "/var/tmp"):
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not path.endswith("task_agent.py"):
                    with open(path, "rb") as file:
                        if mark in file.read(10_000_000):
                            return path
    return None


def program(inputs):
    if os.path.exists("/tmp/left behind"):
        raise RuntimeError("an earlier task was in this container")
    open("/tmp/left behind", "w").close()
    (name,) = inputs["files"]
    if name in SOLUTION:
        return {{"files": {{name: SOLUTION[name]}}}}
    return FORGED if name == "merge_spans.py" else {{"files": dict(inputs["files"])}}
"""


def make_agent(path: Path) -> Path:
    """Make an agent that gives right, forged and empty answers to the shipped domains."""
    make_agent_repository(path)
    solution = {"column_name.py": (EXERCISES / "column_name/solution.py").read_text()}
    (path / "task_agent.py").write_text(TASK_AGENT.format(solution=solution))
    git(["-C", str(path), "commit", "-q", "-a", "-m", "an agent for three domains"])
    return path


@pytest.fixture
def run(tmp_path: Path, runtime: Runtime, base_image: str) -> Callable[..., RunSummary]:
    """Return a function that evaluates the agent on some domains."""

    def start(domains: tuple[str, ...], **options: Any) -> RunSummary:
        agent = make_agent(tmp_path / "agent")
        chosen = {"max_generation": 0, "image": base_image, **options}
        return start_run(runtime, tmp_path, agent=str(agent), domains=domains, **chosen)

    return start


def report_of(summary: RunSummary, name: str) -> dict[str, Any]:
    value = json.loads((Path(summary.run_dir) / "gen_initial" / name / "report.json").read_text())
    assert isinstance(value, dict)
    return value


def test_an_agent_answers_a_table_without_seeing_its_labels(run: Callable[..., RunSummary]) -> None:
    summary = run(("table",))
    assert summary.generations[0].failure is None
    report = report_of(summary, "tickets_eval")
    assert report["valid"] == report["total"] == 12, "the agent found a label"
    assert report["overall_accuracy"] == pytest.approx(1 / 3)
    assert summary.generations[0].score == pytest.approx(1 / 3)


def test_programs_run_in_fresh_containers_and_cannot_forge_test_results(
    run: Callable[..., RunSummary],
) -> None:
    summary = run(("polyglot",), eval_samples=(3,))
    assert summary.generations[0].failure is None
    report = report_of(summary, "polyglot_eval")
    assert report["total_resolved_ids"] == ["column_name"]
    assert report["total_unresolved_ids"] == ["merge_spans"]
    assert report["total_emptypatch_ids"] == ["first_fault"]
    histories = Path(summary.run_dir) / "gen_initial/polyglot_eval/agent_evals"
    assert sorted(path.name for path in histories.iterdir()) == [
        "column_name.md",
        "first_fault.md",
        "merge_spans.md",
    ]


TWICE = """
from hyperruntime.domain import DomainBase, Score, Split, Task, Trial, TriedDomain

FIRST = "echo secret > /tmp/left; cat given; head -c 2000000 /dev/zero"
SECOND = "ls /tmp; cat given"


class Twice(DomainBase, TriedDomain):
    name, description, agent, task_timeout_s = "twice", "two trials", "llm", 60.0
    splits = (Split(name="train"),)

    def tasks(self, split, limit=None):
        return tuple(Task(id=name, inputs={"message": ""}) for name in ("both", "first"))[:limit]

    def trial(self, task, prediction):
        def then(result):
            if task.id == "first":
                facts = {"kept": len(result.stdout)}
                return Score(task_id=task.id, value=0.25, valid=True, facts=facts)
            files = {"given": result.stdout[:5] + b"second"}
            return Trial(args=("sh", "-c", SECOND), files=files)
        return Trial(
            args=("sh", "-c", FIRST), files={"given": "first"}, then=then, output_limit_bytes=3_000_000
        )

    def verdict(self, task, prediction, result):
        facts = {"printed": result.stdout.decode()}
        return Score(task_id=task.id, value=0.75, valid=True, facts=facts)

    def score(self, task, prediction):
        return Score(task_id=task.id, value=0.0, valid=False)
"""


def test_a_trial_may_be_followed_by_one_in_another_container(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    (tmp_path / "twice.py").write_text(TWICE)
    summary = run((f"{tmp_path}/twice.py:Twice",))
    tasks = report_of(summary, "twice_eval")["tasks"]
    assert (tasks["first"]["score"], tasks["first"]["kept"]) == (0.25, 2_000_005)
    assert tasks["both"]["score"] == 0.75
    assert "firstsecond" in tasks["both"]["printed"]
    assert "left" not in tasks["both"]["printed"]


def test_an_answer_to_an_open_problem_is_measured_by_the_record(
    run: Callable[..., RunSummary],
) -> None:
    summary = run(("math:golomb-10",))
    assert (summary.generations[0].failure, summary.generations[0].score) == (None, 1.0)
    facts = report_of(summary, "math_golomb-10_eval")["tasks"]["golomb-10"]
    assert (facts["value"], facts["record"], facts["is_record"]) == ("55", "55", False)


def test_proofs_are_graded_by_models_that_the_host_asks(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    text = (
        "Problem ID,Problem,Solution,Grading guidelines\nP1,Is n even?,the parity of n,be strict\n"
    )
    (tmp_path / "proofbench.csv").write_text(text)

    def grade(request: Mapping[str, Any]) -> ModelReply:
        asked = request["messages"][0]["content"]
        ours = "\nby induction\n" in asked and "the parity of n" in asked and "be strict" in asked
        return says("GRADE: almost" if ours else "GRADE: incorrect")

    with scripted_model(grade) as model:
        (tmp_path / "graders.toml").write_text(
            '[graders]\nmodels = ["one", "two"]\n'
            f'[[gateway.upstreams]]\nname = "lab"\nurl = "{model.url}"\n'
            '[[gateway.models]]\nname = "*"\nupstream = "lab"\n'
        )
        summary = run((f"imo_proof:{tmp_path}/graders.toml",))
    assert summary.generations[0].score == pytest.approx(6 / 7)
    assert report_of(summary, "imo_proof_eval")["grader_agreement"] == 1.0
    assert len(model.requests) == 2


def test_an_episode_is_played_turn_by_turn_with_one_agent(run: Callable[..., RunSummary]) -> None:
    summary = run(("babyai",), eval_samples=(1,))
    assert summary.generations[0].failure is None
    level = report_of(summary, "babyai_eval")["environments"]["GoToLocal-v0"]
    assert (level["progression_percentage"], level["failed_action_candidates"]) == (100.0, 1)
    lines = (
        (Path(summary.run_dir) / "gen_initial/babyai_eval/predictions.jsonl")
        .read_text()
        .splitlines()
    )
    assert json.loads(lines[0])["prediction"]["actions"] == [
        "go forward",
        "dance",
        "go forward",
        "turn right",
    ]


def test_one_run_evaluates_domains_of_all_forms(run: Callable[..., RunSummary]) -> None:
    summary = run(("polyglot", "table", "babyai"), eval_samples=(1, 4, 1), max_generation=1)
    assert [record.failure for record in summary.generations] == [None, None]
    scores = summary.generations[0].scores
    assert (scores["polyglot"]["train"], scores["tickets"]["train"], scores["babyai"]["train"]) == (
        1.0,
        0.5,
        1.0,
    )
    assert report_of(summary, "tickets_eval")["total"] == 4


@pytest.mark.slow
def test_the_domain_of_the_documentation_is_evaluated(
    tmp_path: Path, runtime_name: str, base_image: str
) -> None:
    code = (ROOT / "docs/writing-a-domain.md").read_text().split("```python\n")[1].split("```")[0]
    point = "[hyperruntime.domains]\nreversal = reversal:Reversal\n"
    install_plugin(tmp_path / "plugin", "reversal", point, code)
    agent = make_agent_repository(tmp_path / "agent")
    answer = "return inputs['word'][::-1]"
    text = (
        "class TaskAgent:\n    def __init__(self, **_): pass\n    def forward(self, inputs): "
        f"{answer}, []\n"
    )
    (agent / "task_agent.py").write_text(text)
    git(["-C", str(agent), "commit", "-q", "-a", "-m", "says words backwards"])
    done = hyperrun(
        "--runtime", runtime_name, "generate", "--domains=reversal", f"--agent={agent}",
        f"--image={base_image}", "--max-generation=0", "--run-id=documented",
        f"--output-dir-parent={tmp_path / 'out'}", env={"PYTHONPATH": str(tmp_path / "plugin")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(
        (tmp_path / "out/generate_documented/gen_initial/reversal_eval_val/report.json").read_text()
    )
    assert report["score"] == 1.0
