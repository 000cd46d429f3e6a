"""The meta agent of the template ``llm`` in git repositories, with a scripted model behind a real
HTTP server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.testing.model import calls, fails, says, scripted_model
from tests.unit.agents.llmtemplate import Modules, Start, git, last, make_repository, run_meta


def write_generation(
    evals: Path, name: str, parent: str | None, score: float | None, **ours: Any
) -> Path:
    folder = evals / f"gen_{name}"
    (folder / "agent_output").mkdir(parents=True)
    shown = {"score": score, "failure": None, "detail": "", **ours}
    (folder / "metadata.json").write_text(
        json.dumps({"parent_genid": parent, "hyperruntime": shown})
    )
    return folder


@pytest.fixture
def evals(tmp_path: Path) -> Path:
    """Return a folder with the results of three generations, as a meta agent sees them."""
    evals = tmp_path / "evals"
    first = write_generation(evals, "initial", None, 0.25)
    (first / "tickets_eval").mkdir()
    report = {"overall_accuracy": 0.25, "total": 4, "question_ids_failed": ["t1", "t2", "t4"]}
    (first / "tickets_eval" / "report.json").write_text(json.dumps(report))
    rows = [
        {
            "task_id": "t1",
            "prediction": "urgent",
            "score": 0.0,
            "detail": "the answer is not one of the 3 labels",
        },
        {
            "task_id": "t2",
            "prediction": None,
            "score": 0.0,
            "error": "the task took more than 60 s",
        },
        {"task_id": "t3", "prediction": "low", "score": 1.0, "detail": "right"},
    ]
    (first / "tickets_eval" / "predictions.jsonl").write_text(
        "\n".join(json.dumps(row) for row in rows) + "\n{torn"
    )
    child = write_generation(evals, "1", "initial", 0.5)
    (child / "agent_output" / "model_patch.diff").write_text(
        "diff --git a/prompts.py b/prompts.py\n"
    )
    write_generation(evals, "2", "initial", None, failure="does-not-load", detail="SyntaxError: x")
    return evals


def test_the_meta_agent_changes_its_own_repository(tmp_path: Path, evals: Path) -> None:
    repo = make_repository(tmp_path / "an agent's repo")
    script = [
        calls(bash={"command": f"cat {evals}/gen_initial/tickets_eval/report.json"}),
        calls(edit={"command": "replace", "path": "settings.py", "old": "TOOL_CALLS = 25", "new": "TOOL_CALLS = 9"}),
        calls(bash={"command": "printf 'A = 1\\n' > tools/extra.py; mkdir __pycache__; echo x > "
            "__pycache__/a.pyc"}),
        says("I changed the limit."),
    ]  # fmt: skip
    with scripted_model(script) as model:
        done = run_meta(
            repo,
            tmp_path / "out",
            "--evals_folder",
            str(evals),
            "--iterations_left",
            "4",
            "--model",
            "m",
            url=model.url,
        )
    assert done.returncode == 0, done.stderr
    task = model.requests[0]["messages"][1]["content"]
    assert model.requests[0]["model"] == "m"
    assert "4 more can follow" in task
    assert str(evals) in task
    assert "- generation initial (this repository): score 0.2500" in task
    assert "- generation 1, from initial: score 0.5000" in task
    assert "does-not-load: SyntaxError: x" in task
    assert '- t1: the answer is not one of the 3 labels; answered "urgent"' in task
    assert "- t2: the task took more than 60 s" in task
    assert "t3:" not in task
    assert "changed prompts.py" in task
    assert "- `tools/bash.py`: The tool ``bash``" in task
    assert '"total": 4' in last(model.requests[1])
    patch = (tmp_path / "out" / "model_patch.diff").read_text()
    assert "+TASK_TOOL_CALLS = 9" in patch
    assert "+++ b/tools/extra.py" in patch
    assert "pyc" not in patch
    assert "I changed the limit." in (tmp_path / "out" / "meta_agent_chat_history.md").read_text()
    fresh = make_repository(tmp_path / "fresh")
    (tmp_path / "patch").write_text(patch)
    git(fresh, "apply", str(tmp_path / "patch"))
    assert (fresh / "tools" / "extra.py").read_text() == "A = 1\n"


def run_here(agent: Modules, repo: Path, outdir: Path, *arguments: str) -> int:
    """Run the meta agent's command in this process; return its exit code."""
    words = ["--repo_path", str(repo), "--git_dir", str(repo), "--outdir", str(outdir), *arguments]
    code: int = agent.run_meta_agent.main(words)
    return code


@pytest.mark.slow
def test_a_change_that_breaks_the_agent_is_returned_to_the_model(
    agent: Modules, start: Start, tmp_path: Path
) -> None:
    repo = make_repository(tmp_path / "repo")
    script = [
        calls(bash={"command": "echo 'def (' >> forms.py"}),
        says("Done."),
        calls(bash={"command": "git checkout -q forms.py; echo '# better' >> forms.py"}),
        says("Mended."),
    ]
    model = start(*script)
    assert run_here(agent, repo, tmp_path / "out", "--iterations_left", "0") == 0
    assert "the last generation" in model.requests[0]["messages"][1]["content"]
    assert "SyntaxError" in last(model.requests[2])
    assert "+# better" in (tmp_path / "out" / "model_patch.diff").read_text()


def test_a_used_up_budget_ends_the_meta_agent_with_a_one_line_error(tmp_path: Path) -> None:
    repo = make_repository(tmp_path / "repo")
    script = [
        calls(bash={"command": "echo >> forms.py"}),
        fails(403, "the budget of 1 requests is used up", "budget_exceeded"),
    ]
    with scripted_model(script) as model:
        done = run_meta(repo, tmp_path / "out", url=model.url)
    assert done.returncode == 1
    said = (
        "the model server refuses further requests: the budget of 1 requests is used up "
        "(budget_exceeded)"
    )
    assert done.stderr.splitlines()[-1] == f"the meta agent stopped: {said}"
    assert "Traceback" not in done.stderr
    assert len(model.requests) == 2
    assert not (tmp_path / "out" / "model_patch.diff").exists()


@pytest.mark.slow
def test_a_model_that_does_nothing_leaves_an_empty_diff(
    agent: Modules, start: Start, tmp_path: Path
) -> None:
    repo = make_repository(tmp_path / "repo")
    start(says("All is well."))
    assert run_here(agent, repo, tmp_path / "out") == 0
    assert (tmp_path / "out" / "model_patch.diff").read_bytes() == b""


def test_the_parent_is_read_from_the_last_commit(
    agent: Modules, tmp_path: Path, evals: Path
) -> None:
    repo = make_repository(tmp_path / "repo")
    git(repo, "commit", "-qm", "generation 1", "--allow-empty")
    assert "generation 1 (this repository)" in agent.past.summary(str(evals), repo)


def test_a_summary_of_many_generations_stays_short(agent: Modules, tmp_path: Path) -> None:
    evals, repo = tmp_path / "evals", make_repository(tmp_path / "repo")
    for number in range(300):
        write_generation(
            evals,
            str(number),
            str(number - 1) if number else None,
            number % 100 / 100,
            detail="x" * 5000,
        )
    text = agent.past.summary(str(evals), repo)
    assert len(text) < 20_000
    assert "300 generations; shown are" in text
    assert "generation 99, from 98: score 0.9900" in text
    assert "generation 299" in text


def test_of_a_long_history_the_newest_generations_and_the_parent_are_read(
    agent: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent.past, "_READ_GENERATIONS", 5)
    evals, repo = tmp_path / "evals", make_repository(tmp_path / "repo")
    for number in range(20):
        write_generation(evals, str(number), None, 0.5)
    git(repo, "commit", "-qm", "generation 7", "--allow-empty")
    total, found = agent.past.read_generations(str(evals), "7")
    assert (total, [one.name for one in found]) == (20, ["0", "7", "15", "16", "17", "18", "19"])
    text = agent.past.summary(str(evals), repo)
    assert "20 generations; shown are 7" in text
    assert "generation 7 (this repository)" in text


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"hyperruntime": 5}', b"[" * 100_000, b"\xff", b'{"score": NaN}'],
)
def test_broken_files_of_earlier_generations_are_ignored(
    agent: Modules, tmp_path: Path, content: bytes
) -> None:
    folder = tmp_path / "evals" / "gen_initial"
    (folder / "x_eval").mkdir(parents=True)
    for name in ("metadata.json", "x_eval/report.json", "x_eval/predictions.jsonl"):
        (folder / name).write_bytes(content)
    text = agent.past.summary(str(tmp_path / "evals"), make_repository(tmp_path / "repo"))
    assert "generation initial (this repository): no score" in text
