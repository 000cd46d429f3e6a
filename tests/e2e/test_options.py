"""``hyperrun generate`` with the options of HyperAgents, ``evaluate`` and ``export``, on a real
engine.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.host.process import wait_until
from tests.doubles.fake_runtime import make_agent_repository
from tests.params import first_quick

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]

PROGRAM = [sys.executable, "-c", "import sys; from hyperruntime.cli import main; sys.exit(main())"]
TASK_AGENT = """
import time

class TaskAgent:
    def __init__(self, model, chat_history_file):
        pass

    def forward(self, inputs):
        if inputs['question'] == 'wait':
            time.sleep(600)
        return 'yes' if inputs['question'] in KNOWN else 'no', []

KNOWN = ['a']
"""
IMPROVE = """
text = open('task_agent.py').read().replace("['a']", "['a', 'b', 'x']")
open('task_agent.py', 'w').write(text)
"""
TABLE = """
name = "questions"
inputs = ["question"]
label = "answer"

[splits.train]
file = "train.csv"

[splits.test]
file = "test.csv"
"""


def hyperrun(*args: str, cwd: Path, runtime: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``hyperrun`` until it exits."""
    return subprocess.run(
        [*PROGRAM, "--runtime", runtime, *args],
        capture_output=True,
        timeout=180,
        cwd=cwd,
        check=False,
    )


@pytest.fixture
def place(tmp_path: Path, base_image: str) -> Path:
    """Return a directory with an agent, the two splits of a table, and a file of options."""
    agent = make_agent_repository(
        tmp_path / "agent", {1: IMPROVE, 2: "open('notes', 'w').write('2')"}
    )
    (agent / "task_agent.py").write_text(TASK_AGENT)
    subprocess.run(["git", "-C", agent, "add", "--all"], check=True)
    subprocess.run(
        ["git", "-C", agent, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
        check=True,
    )
    (tmp_path / "questions.toml").write_text(TABLE)
    (tmp_path / "train.csv").write_text("question,answer\na,yes\nb,yes\nc,no\nd,no\n")
    (tmp_path / "test.csv").write_text("question,answer\nx,yes\ny,no\nz,yes\n")
    (tmp_path / "run.toml").write_text(
        f'[generate]\nagent = "agent"\nimage = "{base_image}"\ntimeout-meta = "2m"\nseed = 1\n'
    )
    return tmp_path


@pytest.mark.slow
def test_the_originals_options_work_and_generations_can_be_tested_and_exported(
    place: Path, runtime_name: str
) -> None:
    args = [
        "--domains=table:questions.toml",
        "--eval_samples",
        "-1",
        "--max_generation",
        "1",
        "--run_id",
        "x",
    ]
    args += ["--parent_selection", "latest", "--config", "run.toml", "--limits", "pids=128"]
    done = hyperrun("generate", *args, cwd=place, runtime=runtime_name)
    assert done.returncode == 0, done.stderr
    again = [*args, "--resume_from", "outputs/generate_x", "--json"]
    again[again.index("--max_generation") + 1] = "2"
    done = hyperrun("generate", *again, cwd=place, runtime=runtime_name)
    assert done.returncode == 0, done.stderr
    run: dict[str, Any] = json.loads(done.stdout)
    assert [one["current_genid"] for one in run["generations"]] == ["initial", 1, 2]
    assert [one["score"] for one in run["generations"]] == [0.75, 1.0, 1.0]
    log = (place / "outputs" / "generate_x" / "generate_loop.log").read_text()
    assert [
        line.partition("max_generation=")[2].partition(",")[0] for line in log.splitlines()
    ] == ["1", "2"]

    scores = {}
    for genid in ("initial", "1"):
        done = hyperrun(
            "evaluate", "outputs/generate_x", genid, "--json", cwd=place, runtime=runtime_name
        )
        assert done.returncode == 0, done.stderr
        (made,) = json.loads(done.stdout)
        scores[genid] = (made["score"], made["tasks"])
    assert scores["initial"] == (pytest.approx(1 / 3), {"questions": 3})
    assert scores["1"] == (pytest.approx(2 / 3), {"questions": 3})
    view = place / "outputs" / "generate_x" / "view"
    assert not [path for path in view.rglob("*") if path.is_file() and "test" in path.name]

    done = hyperrun("export", "outputs/generate_x", "2", "copy", cwd=place, runtime=runtime_name)
    assert done.returncode == 0, done.stderr
    assert (place / "copy" / "notes").read_text() == "2"
    fresh = [
        "--domains=table:questions.toml",
        "--agent=copy",
        "--max-generation=0",
        "--run-id=y",
        "--json",
    ]
    done = hyperrun("generate", "--config", "run.toml", *fresh, cwd=place, runtime=runtime_name)
    assert json.loads(done.stdout)["best"]["score"] == 1.0, done.stderr


@pytest.mark.slow
def test_a_batch_script_starts_its_run_once_and_resumes_it_after_that(
    place: Path, runtime_name: str
) -> None:
    args = [
        "--domain",
        "table:questions.toml",
        "--config=run.toml",
        "--run-id=job",
        "--resume-or-start",
    ]
    done = [
        hyperrun("generate", *args, "--max", last, "--eval_work", workers, "--timeout-eval", f"{workers}m", "--json",
                 cwd=place, runtime=runtime_name)
        for last, workers in (("1", "10"), ("2", "3"))
    ]  # fmt: skip
    assert [one.returncode for one in done] == [0, 0], done
    made = json.loads(done[1].stdout)["generations"]
    assert [one["current_genid"] for one in made] == ["initial", 1, 2]
    journal = (place / "outputs/generate_job/journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["settings"]["eval_workers"] for line in journal] == [10, 10, 3]
    assert [json.loads(line)["settings"]["timeout_eval_s"] for line in journal] == [
        600.0,
        600.0,
        180.0,
    ]


def test_a_run_is_announced_only_if_its_options_can_be_used(place: Path, runtime_name: str) -> None:
    (place / "no.diff").write_text(
        "--- a/task_agent.py\n+++ b/task_agent.py\n@@ -1 +1 @@\n-not there\n+x\n"
    )
    args = ["--domains=table:questions.toml", "--config=run.toml", "--meta-patch-files", "no.diff"]
    done = hyperrun("generate", *args, cwd=place, runtime=runtime_name)
    assert done.returncode == 2, done.stderr
    assert b"--meta-patch-files: 'no.diff'" in done.stderr
    assert b"run " not in done.stderr.splitlines()[0][:4]
    assert list((place / "outputs").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code"), first_quick((signal.SIGTERM, 143), (signal.SIGINT, 130))
)
def test_an_interrupted_evaluation_leaves_no_files_and_no_containers(
    place: Path, runtime_name: str, number: signal.Signals, code: int
) -> None:
    common = ["--config", "run.toml", "--domains", "table:questions.toml", "--run-id", "x"]
    (place / "test.csv").write_text("question,answer\nwait,yes\n")
    done = hyperrun("generate", *common, "--max-generation", "0", cwd=place, runtime=runtime_name)
    assert done.returncode == 0, done.stderr
    args = [*PROGRAM, "--runtime", runtime_name, "evaluate", "outputs/generate_x", "initial"]
    process = subprocess.Popen(args, cwd=place, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    for line in process.stderr:
        if b"initial: evaluate" in line:
            break
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert b"its files are removed" in err
    kept = [path.name for path in (place / "outputs" / "generate_x" / "evaluations").iterdir()]
    assert [name for name in kept if not name.endswith(".lock")] == []

    def owned() -> list[Any]:
        listed = json.loads(hyperrun("ps", "--json", cwd=place, runtime=runtime_name).stdout)
        return [one for one in listed if one["owner_pid"] == process.pid]

    assert wait_until(lambda: not owned(), timeout_s=60)
