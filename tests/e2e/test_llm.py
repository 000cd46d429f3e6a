"""The agent template ``llm`` in containers without a network; it reaches a scripted model through
the gateway.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import GatewayError
from hyperruntime.loop.run.run import RunSummary
from hyperruntime.testing.model import ModelReply, calls, says, scripted_model
from tests.doubles.upstream import forget_model_servers
from tests.runs import start as start_run

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "hyperruntime" / "agents" / "llm"
SAMPLE = ROOT / "domains" / "hyperdomain_table" / "sample"
EXERCISES = ROOT / "domains" / "hyperdomain_polyglot" / "exercises"
HINT = "The labels are low, medium and high."
Request = Mapping[str, Any]


def urgencies() -> dict[str, str]:
    """Return the right label of each message of the sample."""
    with (SAMPLE / "train.csv").open(newline="") as file:
        rows = [
            *csv.DictReader(file),
            *map(json.loads, (SAMPLE / "val.jsonl").read_text().splitlines()),
        ]
    return {row["message"]: row["urgency"] for row in rows}


def is_meta(request: Request) -> bool:
    return "You improve a program" in request["messages"][0]["content"]


def answer_task(request: Request) -> ModelReply:
    """Answer a row like a model that knows the labels only if its prompt names them."""
    text = request["messages"][1]["content"]
    label = next(urgency for message, urgency in urgencies().items() if message in text)
    return says(f'```json\n"{label if HINT in text else "urgent"}"\n```')


def improve(request: Request) -> ModelReply:
    """Read the report of the parent, then add the labels to the prompt for tasks."""
    turn: int = sum(message["role"] == "assistant" for message in request["messages"])
    steps: list[ModelReply] = [
        calls(bash={"command": "cd /workspace/evals && ls gen_*/*_eval && cat "
            "gen_initial/tickets_eval/report.json"}),
        calls(edit={"command": "replace", "path": "prompts.py", "old": "# How to answer\\n\\n",
                    "new": f"# How to answer\\n\\n{HINT} "}),
        calls(bash={"command": "cd /workspace/repo && python3 -B -c 'import task_agent' && git diff --stat"}),
        says("The labels were not known; now they are told."),
    ]  # fmt: skip
    return steps[turn]


@pytest.fixture
def run(
    tmp_path: Path, runtime: hr.Runtime, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RunSummary]:
    """Return a function that runs the template with a script for its model."""
    forget_model_servers(monkeypatch)

    def start(script: Any, **options: Any) -> RunSummary:
        with scripted_model(script) as model:
            monkeypatch.setenv("OPENAI_BASE_URL", model.url)
            monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-host")
            chosen = {"domains": f"table:{SAMPLE / 'tickets.toml'}", "seed": 5, **options}
            return start_run(runtime, tmp_path, agent="llm", **{"max_generation": 1, **chosen})

    return start


def test_an_agent_improves_its_own_task_agent(run: Callable[..., RunSummary]) -> None:
    told: list[str] = []

    def script(request: Request) -> ModelReply:
        if is_meta(request):
            told.append(request["messages"][-1]["content"])
            return improve(request)
        return answer_task(request)

    summary = run(script, eval_samples=(4,))
    initial, first = summary.generations
    assert (initial.failure, first.failure) == (None, None), summary.generations
    assert initial.score == 0.0
    assert first.score == 1.0
    assert "(this repository): score 0.0000" in told[0]
    assert "the answer is not one of the 3 labels" in told[0]
    assert "overall_accuracy" in told[1]
    assert "prompts.py | 2 +-" in told[3]
    folder = Path(summary.run_dir) / "gen_1"
    assert HINT in (folder / "agent_output" / "model_patch.diff").read_text()
    history = (folder / "agent_output" / "meta_agent_chat_history.md").read_text()
    assert "now they are told" in history
    assert "overall_accuracy" in history
    chat = (folder / "tickets_eval" / "agent_evals" / "t01.md").read_text()
    assert HINT in chat
    assert '"high"' in chat
    assert first.usage is not None
    assert first.usage.requests == 4 + 8


def test_programs_are_written_with_tools_in_the_container(run: Callable[..., RunSummary]) -> None:
    def script(request: Request) -> ModelReply:
        if len(request["messages"]) > 2:
            return says("Done.")
        text = request["messages"][1]["content"]
        name = next(folder.name for folder in EXERCISES.iterdir() if f"`{folder.name}.py`" in text)
        program = (EXERCISES / name / "solution.py").read_text()
        return calls(edit={"command": "create", "path": f"{name}.py", "text": program})

    summary = run(
        script, domains="polyglot", max_generation=0, eval_samples=(2,), skip_staged_eval=True
    )
    (initial,) = summary.generations
    assert (initial.failure, initial.score) == (None, 1.0), initial


@pytest.mark.slow
def test_an_exhausted_budget_ends_the_generation_and_is_logged(
    run: Callable[..., RunSummary],
) -> None:
    def script(request: Request) -> ModelReply:
        return calls(bash={"command": "true"}) if is_meta(request) else answer_task(request)

    summary = run(script, budget_generation_requests=10, eval_samples=(3,))
    initial, first = summary.generations
    assert initial.failure is None
    assert first.failure == "budget", first.detail
    log = (Path(summary.run_dir) / "gen_1" / "generate.log").read_text()
    assert "the meta agent stopped: the model server refuses further requests" in log


def test_without_a_model_server_no_run_is_started(
    tmp_path: Path, runtime: hr.Runtime, run: Any
) -> None:
    with pytest.raises(GatewayError, match="the agent asks models"):
        start_run(runtime, tmp_path, agent="llm")
    assert not (tmp_path / "out").exists()
