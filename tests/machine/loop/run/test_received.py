"""Runs that somebody else made: what their files may choose, and where they may make a resume
write.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import HyperRuntimeError
from hyperruntime.loop.run.one_generation import evaluate_generation, image_to_evaluate
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import resume_run
from hyperruntime.runs.own_mark import ReceivedRunError, has_own_mark
from tests.doubles.fake_runtime import FakeRuntime
from tests.doubles.upstream import forget_model_servers

Edit = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own keys from the environment."""
    forget_model_servers(monkeypatch)


def stored(run_dir: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run_dir / "run.json").read_text())
    return value


@pytest.fixture
def received(finished: Path) -> Edit:
    """Return a function that changes the options and facts of the finished run as an attacker
    would.
    """

    def edit(facts: dict[str, Any] | None = None, **options: Any) -> Path:
        value = stored(finished)
        value |= facts or {}
        value["options"] |= options
        (finished / "run.json").write_text(json.dumps(value))
        return finished

    return edit


def test_an_own_run_is_resumed_without_a_question_also_when_it_was_renamed(
    finished: Path, received: Edit, tmp_path: Path
) -> None:
    resume_run(FakeRuntime(), plan_resume(received(network="host"), trust=True))
    assert has_own_mark(stored(finished), finished)
    moved = finished.rename(tmp_path / "moved")
    assert len(resume_run(FakeRuntime(), plan_resume(moved, max_generation=4)).generations) == 5
    assert has_own_mark(stored(moved), moved), "also after its options changed"


def test_a_copy_of_an_own_run_is_asked_about_because_it_may_have_been_out_of_the_users_hands(
    finished: Path, received: Edit, tmp_path: Path
) -> None:
    resume_run(FakeRuntime(), plan_resume(received(network="host"), trust=True))
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    with pytest.raises(ReceivedRunError, match="asks for --network host;"):
        plan_resume(copy)
    plan_resume(finished)


def test_a_received_run_that_asks_for_nothing_is_resumed_and_is_then_this_users(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert not has_own_mark(stored(finished), finished)
    resume_run(FakeRuntime(), plan_resume(finished))
    assert has_own_mark(stored(finished), finished)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"network": "host"}, "--network host"),
        ({"gateway": "/tmp/theirs.toml"}, "--gateway /tmp/theirs.toml"),
        ({"gateway": "record:/home/me/.bashrc"}, "--gateway record:/home/me/.bashrc"),
        ({"image": "dir:/etc"}, "--image dir:/etc"),
        ({"gpus": "all"}, "--gpus all"),
        ({"limits": {"pids": None, "disk_bytes": 1 << 30}}, "--pids null"),
        ({"limits": {"pids": 512, "disk_bytes": 1 << 60}}, "--disk"),
        ({"network": "host", "gpus": "all"}, "--network host and --gpus all"),
    ],
)
def test_what_a_received_run_asks_of_the_host_needs_consent(
    received: Edit, options: dict[str, Any], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = received(**options)
    before = stored(run_dir)
    with pytest.raises(
        ReceivedRunError, match=f"was made elsewhere and asks for {asked}"
    ) as refused:
        plan_resume(run_dir, max_generation=4)
    assert refused.value.exit_code == 2
    with pytest.raises(ReceivedRunError, match=asked):
        evaluate_generation(FakeRuntime(), run_dir, "best", split="train")
    assert stored(run_dir) == before, "a refusal marks nothing"


def test_the_file_that_a_domain_of_a_received_run_names_is_not_read_before_consent(
    received: Edit, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    named = f"table:{tmp_path}/pipe"
    run_dir = received(domains=[named], eval_samples=None)
    for call in (
        lambda trust: plan_resume(run_dir, trust=trust),
        lambda trust: evaluate_generation(
            FakeRuntime(), run_dir, "best", split="train", trust=trust
        ),
        lambda trust: image_to_evaluate(run_dir, trust=trust),
    ):
        with pytest.raises(
            ReceivedRunError, match=f"was made elsewhere and asks for --domains {named}"
        ):
            call(False)
        (tmp_path / "pipe").unlink()
        with pytest.raises(HyperRuntimeError, match="pipe") as read:
            call(True)
        assert not isinstance(read.value, ReceivedRunError)
        os.mkfifo(tmp_path / "pipe")


def test_an_accepted_run_is_this_users_until_its_file_is_changed(received: Edit) -> None:
    run_dir = received(network="host")
    resume_run(FakeRuntime(), plan_resume(run_dir, trust=True))
    plan_resume(run_dir)
    received(gpus="all")
    with pytest.raises(ReceivedRunError, match="--network host and --gpus all"):
        plan_resume(run_dir)


def test_an_option_that_is_given_again_is_not_asked_for(received: Edit, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[gateway]\nupstreams = []\nmodels = []\n")
    run_dir = received(gateway="/tmp/theirs.toml", network="host")
    with pytest.raises(ReceivedRunError, match="asks for --network host;"):
        plan_resume(run_dir, changes={"gateway": str(tmp_path / "mine.toml")})
    plan = plan_resume(
        run_dir, changes={"gateway": str(tmp_path / "mine.toml")}, given=[("network",)]
    )
    assert plan.options.gateway == str(tmp_path / "mine.toml")


def test_the_dotenv_that_a_received_run_names_by_its_agent_needs_consent(
    received: Edit, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text(
        "OPENAI_BASE_URL=http://198.51.100.1/v1\nOPENAI_API_KEY=theirs\n"
    )
    run_dir = received({"agent": str(tmp_path)})
    with pytest.raises(ReceivedRunError, match=r"OPENAI_API_KEY and OPENAI_BASE_URL of '.*/\.env'"):
        plan_resume(run_dir)
    plan = plan_resume(run_dir, trust=True)
    assert plan.gateway is not None


def test_the_unfinished_generations_of_a_received_run_are_made_again(received: Edit) -> None:
    run_dir = received()
    theirs = run_dir / "work" / "gen_4"
    (theirs / "agent_output").mkdir(parents=True)
    (theirs / "theirs.txt").write_text("x")
    plan = {"phase": "plan", "genid": 4, "parent": 2, "commit": "0" * 40, "archived": 4}
    (run_dir / "work" / "gen_4.phases.jsonl").write_text(json.dumps(plan) + "\n")
    received(eval_workers=3)
    made = resume_run(FakeRuntime(), plan_resume(run_dir, max_generation=4)).generations[-1]
    assert (made.genid, made.failure) == (4, None)
    assert not (run_dir / "gen_4" / "theirs.txt").exists()
