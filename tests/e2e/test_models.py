"""Runs whose agents use models: keys stay on the host, budgets are enforced, and usage is
recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperruntime import Runtime
from hyperruntime.cli import main
from hyperruntime.errors import RunError
from hyperruntime.git.command import git
from hyperruntime.loop.run.one_generation import evaluate_generation
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run_files.archive import load_run
from tests.doubles.fake_runtime import make_agent_repository
from tests.doubles.upstream import (
    Reply,
    ScriptedUpstream,
    chat,
    forget_model_servers,
    json_reply,
    scripted_upstream,
)
from tests.runs import failures
from tests.runs import start as start_run

pytestmark = pytest.mark.engine

KEY = "sk-of-the-host-0123456789"
ASK = """
import json
import os
import urllib.request


def ask(model="gpt-4o"):
    body = json.dumps({"model": model, "messages": []}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""
IMPROVE = "from ask import ask; assert ask() == 'hello'; improve()"
LOOP = """
from ask import ask
while True:
    try:
        ask()
    except OSError:
        pass
"""
ASKING_TASK_AGENT = r"""
from ask import ask
with open(f"{repo}/task_agent.py") as file:
    text = file.read()
with open(f"{repo}/task_agent.py", "w") as file:
    file.write("from ask import ask\n" + text.replace('n = inputs["n"]', 'n = inputs["n"]\n        ask(self.model)')
               .replace("self.chat", "self.model = model\n        self.chat", 1))
"""
SNOOP = r"""
import subprocess
secret = "-".join(["of", "the", "host"])
assert not os.path.exists(".env") and secret.encode() not in open("/proc/self/environ", "rb").read()
found = subprocess.run(["grep", "-rl", secret, "/workspace", "/run", "/tmp", "/etc"], capture_output=True)
assert not found.stdout, found.stdout
objects = subprocess.run("git -c safe.directory='*' cat-file --batch-all-objects --batch", shell=True,
                         cwd=repo, capture_output=True, check=True).stdout
assert b"class MetaAgent" in objects and secret.encode() not in objects
with open(f"{repo}/.env", "w") as file:
    file.write("OPENAI_BASE_URL=http://evil\n")
improve()
"""


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """Yield a model server that always answers hello."""
    with scripted_upstream(lambda _: chat("hello", 10, 5)) as running:
        yield running


@pytest.fixture
def run(
    tmp_path: Path,
    runtime: Runtime,
    base_image: str,
    upstream: ScriptedUpstream,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., RunSummary]:
    """Return a function that runs an agent with a key and a server in its committed ``.env``."""
    forget_model_servers(monkeypatch)

    def start(actions: dict[int, str], *, dotenv: bool = True, **options: Any) -> RunSummary:
        agent = make_agent_repository(tmp_path / f"agent{options.get('run_id', '')}", actions)
        (agent / "ask.py").write_text(ASK)
        if dotenv:
            (agent / ".env").write_text(
                f"OPENAI_BASE_URL={upstream.url}\nexport OPENAI_API_KEY='{KEY}' # mine\n"
            )
        for command in (["add", "--all"], ["commit", "-q", "-m", "asks"]):
            git(["-C", str(agent), *command])
        chosen = {"max_generation": max(actions, default=0), "image": base_image, **options}
        return start_run(runtime, tmp_path, agent=str(agent), **chosen)

    return start


def seats(summary: RunSummary) -> list[str]:
    """Return the seat of each recorded exchange, without the run's prefix."""
    lines = (Path(summary.run_dir) / "exchanges.jsonl").read_text().splitlines()
    return [json.loads(line)["seat"].partition("/")[2] for line in lines]


def test_agents_ask_through_the_gateway_their_usage_is_recorded_and_no_file_has_the_key(
    run: Callable[..., RunSummary], upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = run(
        {1: IMPROVE + ASKING_TASK_AGENT, 2: SNOOP}, model="qwen", parent_selection="latest"
    )
    assert failures(summary) == [None] * 3, summary.generations
    assert {received.body["model"] for received in upstream.received} == {"qwen"}
    assert {received.headers["authorization"] for received in upstream.received} == {
        f"Bearer {KEY}"
    }
    initial, first, second = summary.generations
    assert seats(summary).count("1/agent") == 1
    assert set(seats(summary)) == {"1/agent", "1/evaluation", "2/evaluation"}
    assert initial.usage is not None
    assert initial.usage.requests == 0
    assert first.usage is not None
    assert first.usage.requests == 1 + seats(summary).count("1/evaluation") == 3
    assert second.dropped == ((".env", ".env is protected"),)
    metadata = json.loads((Path(summary.run_dir) / "gen_1" / "metadata.json").read_text())
    assert metadata["hyperruntime"]["usage"] == {
        "requests": 3,
        "input_tokens": 30,
        "output_tokens": 15,
        "money": 0.0,
    }
    assert load_run(summary.run_dir).generations[1].usage == first.usage
    assert main(["status", summary.run_dir]) == 0
    assert "models: 5 requests, 50 tokens read, 25 written, money 0\n" in capsys.readouterr().out
    root = Path(summary.run_dir)
    for path in root.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    stored = git(["-C", str(root / "repository.git"), "cat-file", "--batch-all-objects", "--batch"])
    assert b"def ask" in stored
    assert KEY.encode() not in stored
    assert not list((root / "view").rglob("*exchanges*"))


def test_a_separate_evaluation_uses_models_without_cost_to_the_run(
    run: Callable[..., RunSummary], runtime: Runtime, upstream: ScriptedUpstream
) -> None:
    summary = run({1: "improve()" + ASKING_TASK_AGENT}, model="qwen", budget_requests=2)
    assert failures(summary) == [None] * 2, summary.generations
    assert len(upstream.received) == 2
    evaluate_generation(runtime, summary.run_dir, 1, split="val", samples=1)
    assert len(upstream.received) == 3
    assert len(seats(summary)) == 2


def test_a_recorded_run_is_replayed_without_a_server(
    run: Callable[..., RunSummary], upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    tape = tmp_path / "tape.jsonl"
    action = IMPROVE.replace("improve()", "") + ASKING_TASK_AGENT
    first = run({1: action}, model="qwen", gateway=f"record:{tape}")
    asked = len(upstream.received)
    again = run(
        {1: action},
        model="qwen",
        gateway=f"replay:{tape}",
        run_id=f"{first.generations[0].genid}-again",
    )
    assert asked == len(upstream.received) == 3
    assert [record.score for record in again.generations] == [
        record.score for record in first.generations
    ]
    assert again.generations[1].usage == first.generations[1].usage


def test_a_generation_over_its_budget_fails_and_its_parent_stays_valid(
    run: Callable[..., RunSummary],
) -> None:
    summary = run(
        {1: "from ask import ask\nwhile True: ask()", 2: IMPROVE}, budget_generation_requests=3
    )
    initial, first, second = summary.generations
    assert (first.failure, first.valid_parent, first.attempts) == ("budget", False, 1)
    assert "generation 1 is used up: 3 of 3 requests" in first.detail
    assert first.usage is not None
    assert first.usage.requests == 3
    assert initial.valid_parent
    assert (second.failure, second.parent) == (None, "initial")
    assert not summary.used_up


def test_an_agent_that_ignores_budget_refusals_is_ended(
    run: Callable[..., RunSummary], upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(
        "[gateway]\ngrace_s = 1.0\nupstreams = [{name = 'u', url = "
        f"'{upstream.url}'}}]\nmodels = [{{name = 'gpt-*', upstream = 'u', output_price = "
        "1e6}]\nbudget = {requests = 50}\n"
    )
    summary = run({1: LOOP}, dotenv=False, gateway=str(config), budget_generation_money=15.0)
    first = summary.generations[1]
    assert first.failure == "budget", first.detail
    assert first.usage is not None
    assert first.usage.money == 15.0
    assert first.durations["meta agent"] < 30


BROKEN = {
    "unreachable": None,
    "status 500": json_reply({"error": {"message": "it broke"}}, 500),
    "a web page": Reply(pieces=(b"<html>Welcome</html>",), headers={"Content-Type": "text/html"}),
}


@pytest.fixture(params=BROKEN)
def broken_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of a broken model server."""
    reply = BROKEN[request.param]
    if reply is None:
        yield "http://127.0.0.1:9/v1"
        return
    with scripted_upstream(lambda _: reply) as server:
        yield server.url


@pytest.mark.slow
def test_a_broken_server_is_an_infrastructure_failure(
    run: Callable[..., RunSummary],
    upstream: ScriptedUpstream,
    tmp_path: Path,
    runtime: Runtime,
    broken_url: str,
) -> None:
    config = tmp_path / "gateway.toml"
    text = (
        "[gateway]\nretries = 0\n[[gateway.upstreams]]\nname = 'gone'\nurl = '{}'\n"
        "[[gateway.models]]\nname = '*'\nupstream = 'gone'\n"
    )
    config.write_text(text.format(broken_url))
    actions = {
        number: f"from ask import ask\nif {number} != 1: ask()\nimprove()"
        for number in (1, 2, 3, 4)
    }
    with pytest.raises(RunError, match="upstream 'gone' failed after 1 attempts"):
        run(actions, gateway=str(config), valid_parent="hyperagents", parent_selection="latest")
    [run_dir] = (tmp_path / "out").iterdir()
    before = load_run(run_dir).generations
    assert [record.failure for record in before] == [None, None, *["infrastructure"] * 3]
    assert before[1].valid_parent
    config.write_text(text.format(upstream.url))
    after = resume_run(runtime, plan_resume(run_dir, max_generation=5))
    assert after.generations[-1].parent == 1


@pytest.mark.slow
def test_a_run_over_its_budget_ends_normally_and_resumes_with_a_larger_budget(
    run: Callable[..., RunSummary], runtime: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = run(
        {1: IMPROVE, 2: IMPROVE, 3: IMPROVE, 4: IMPROVE}, budget_requests=2, max_generation=3
    )
    assert [record.genid for record in summary.generations] == ["initial", 1, 2]
    assert "2 of 2 requests" in summary.used_up
    assert not summary.interrupted
    again = resume_run(runtime, plan_resume(summary.run_dir))
    assert [record.genid for record in again.generations] == ["initial", 1, 2]
    assert again.used_up, "usage before the resume counts"
    command = ["--runtime", runtime.name, "resume", summary.run_dir]
    command += ["--max-generation", "4", "--json"]
    assert main([*command, "--budget-requests", "3"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["used_up"].startswith(
        "the budget of the run is used up: 3 of 3 requests"
    )
    assert "resume with a larger one" in told.err
    assert main([*command, "--budget-requests", "4"]) == 0
    last = json.loads(capsys.readouterr().out)
    assert [entry["failure"] for entry in last["generations"]] == [None] * 5
    assert last["used_up"] is None
