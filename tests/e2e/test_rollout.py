"""``hyperrun rollout run`` on a real engine, with scripted models."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.cli import main
from hyperruntime.host.process import wait_until
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, read_groups, read_trajectories
from hyperruntime.rollout.run_files.turn_journal import TURNS
from hyperruntime.testing.model import ModelReply, calls, says, scripted_model
from tests.doubles.byte_tokenizer import render_hermes
from tests.doubles.tokenizers import write_byte_tokenizer
from tests.doubles.tokenserver import emitted, in_turn, token_server
from tests.e2e.rollout_world import WORLD, rollout
from tests.params import first_quick

pytestmark = pytest.mark.engine


def number_of(request: Mapping[str, Any]) -> str:
    found = re.search(r"hold (\d+)", request["messages"][0]["content"])
    assert found is not None
    return found[1]


def fixing(request: Mapping[str, Any]) -> ModelReply:
    if request["messages"][-1]["role"] == "tool":
        return says("done")
    return calls(
        bash={
            "command": f"echo {number_of(request)} > answer.txt; (setsid sleep 77 > /dev/null 2>&1 &)"
        }
    )


def inspecting(request: Mapping[str, Any]) -> ModelReply:
    return (
        says("done")
        if request["messages"][-1]["role"] == "tool"
        else calls(bash={"command": "cat answer.txt"})
    )


def arguments(runtime_name: str, url: str, run_dir: Path, *more: str) -> list[str]:
    return ["--runtime", runtime_name, *rollout(url, run_dir, *more)]


@pytest.mark.parametrize(("script", "reward"), [(fixing, 1.0), (inspecting, 0.0)])
def test_r1_a_fixing_model_scores_and_an_inspecting_one_does_not(
    script: Any,
    reward: float,
    runtime_name: str,
    base_image: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with scripted_model(script) as model:
        more = ("--group-size=2", "--parallel=2", "--json")
        code = main(arguments(runtime_name, model.url, tmp_path / "run", *more))
    summary = json.loads(capsys.readouterr().out)
    assert (code, summary["mean_reward"], summary["scored"], summary["groups"]) == (0, reward, 4, 2)
    groups = read_groups(tmp_path / "run")
    assert {group.item_id: list(group.rewards) for group in groups} == {
        "n0": [reward] * 2,
        "n1": [reward] * 2,
    }
    for trajectory in read_trajectories(tmp_path / "run"):
        facts = trajectory.verdict["facts"]
        assert facts["left"] == "", "the agent's processes end before it is judged"
        assert facts["judged_in"] == "", "the judge's container is unused"
        assert trajectory.turns == 2
        assert trajectory.timing["total_s"] > trajectory.timing["tools_s"] > 0


CONVERSATION = (
    calls(terminal={"command": "printf 'a\\nb\\n' > list.txt; ls"}),
    calls(read_file={"path": "list.txt"}),
    calls(("write_file", {"path": "../../../etc/passwd", "content": "x"}), ("bash", "{torn")),
    calls(("no_such_tool", {}), ("edit_file", {"path": "list.txt", "old": "b", "new": "c"})),
    calls(bash={"command": "cat list.txt; echo oops >&2; exit 3"}),
    says("done"),
)


def test_r5_one_conversation_is_the_same_on_every_engine(
    runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    """R5, W21: every tool works in the slot and none on the host."""
    with scripted_model(CONVERSATION) as model:
        more = ("--max-items=1", f"--tools={TOOLS}")
        assert main(arguments(runtime_name, model.url, tmp_path, *more)) == 0
    (trajectory,) = read_trajectories(tmp_path)
    answers = [json.loads(m["content"]) for m in trajectory.messages if m["role"] == "tool"]
    assert [m["role"] for m in trajectory.messages] == ["user", *ROLES]
    assert answers[0] == {"output": "answer.txt\nlist.txt\n", "exit_code": 0}
    assert (answers[1]["success"], answers[1]["output"]) == (True, "a\nb\n")
    assert "outside" in answers[2]["error"]
    assert "JSON" in answers[3]["error"]
    assert "no_such_tool" in answers[4]["error"]
    assert answers[5]["success"] is True, answers[5]
    assert answers[6] == {"output": "a\nc\n[stderr]\noops\n", "exit_code": 3}
    assert [(error["turn"], error["tool"]) for error in trajectory.tool_errors] == [
        (3, "bash"),
        (4, "no_such_tool"),
    ]
    assert trajectory.stop_reason == "finished"
    assert not Path("list.txt").exists()


TOOLS = "terminal,bash,read_file,write_file,edit_file"
ROLES = (
    ["assistant", "tool"] * 2
    + ["assistant", "tool", "tool"] * 2
    + ["assistant", "tool", "assistant"]
)


def test_r21_five_terminal_calls_against_a_generate_endpoint_leave_a_complete_token_record(
    runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    commands = ["pwd", "ls -la", "cat answer.txt", "python3 --version", "git --version || true"]
    texts = [
        f"Step {n}. " + render_hermes("terminal", {"command": c}) for n, c in enumerate(commands)
    ]
    model = str(write_byte_tokenizer(tmp_path))
    wire = ("--wire", "sglang", "--tokenizer", model, "--require-tokens")
    more = ("--max-items", "1", "--tools", "terminal", *wire)
    with token_server(in_turn(*texts)) as server:
        assert main(arguments(runtime_name, server.url, tmp_path / "run", *more)) == 0
    (trajectory,) = read_trajectories(tmp_path / "run")
    assert (trajectory.reward, trajectory.turns, trajectory.stop_reason) == (0.0, 6, "finished")
    assert trajectory.verdict["phase"] == "tests", "the environment verified it"
    answers = [json.loads(m["content"]) for m in trajectory.messages if m["role"] == "tool"]
    assert [answer["exit_code"] for answer in answers] == [0] * 5
    assert answers[2]["output"] == "broken\n"
    (segment,) = trajectory.segments
    assert len(segment.ids) == len(segment.mask) == len(segment.logprobs)
    assert emitted([segment]) == tuple(token for turn in server.turns for token in turn.ids)
    assert sum(segment.mask) == trajectory.usage["completion_tokens"]


def started(args: list[str]) -> subprocess.Popen[str]:
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from hyperruntime.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen([sys.executable, "-c", code, *args], stderr=subprocess.PIPE, text=True)


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def stalling(request: Mapping[str, Any]) -> ModelReply:
    """Fix the first two items, and the others with a command that takes some seconds."""
    number = number_of(request)
    if number not in ("0", "1") and request["messages"][-1]["role"] != "tool":
        return calls(bash={"command": f"echo {number} > answer.txt; sleep 8"})
    return fixing(request)


def stalled(run_dir: Path) -> int:
    """Return how many trajectories run a command that takes some seconds."""
    return sum(b"sleep 8" in path.read_bytes() for path in (run_dir / TURNS).glob("*"))


@pytest.mark.parametrize(
    ("number", "code"),
    first_quick((signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)),
)
def test_r11_an_ended_run_leaves_no_container_and_can_be_resumed(
    number: signal.Signals,
    code: int,
    runtime_name: str,
    runtime: hr.Runtime,
    base_image: str,
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    more = ("--option", "count=4", "--group-size", "2", "--parallel", "2")
    with scripted_model(stalling) as model:
        process = started(arguments(runtime_name, model.url, run_dir, *more))
        assert wait_until(  # the next rollouts now run their commands
            lambda: len(lines_of(run_dir / TRAJECTORIES)) >= 4 and stalled(run_dir) >= 2, 120
        )
        os.kill(process.pid, number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == code, said
    assert number == signal.SIGKILL or "--resume-from" in said
    assert wait_until(lambda: owned_by(runtime, process.pid) == [], 30, 0.1)
    assert {t.id for t in read_trajectories(run_dir)} == {"n0/0", "n0/1", "n1/0", "n1/1"}
    with scripted_model(fixing) as model:
        command = ["--runtime", runtime_name, "rollout", "run"]
        resumed = [*command, "--resume-from", str(run_dir), "--base-url", model.url]
        again = arguments(runtime_name, model.url, run_dir, *more, "--resume-or-start")
        assert main(again if number == signal.SIGKILL else resumed) == 0
        assert len(model.requests) == 6  # the first turn of two trajectories is played back
    found = read_trajectories(run_dir)
    assert sorted(t.id for t in found) == sorted(f"n{n}/{k}" for n in range(4) for k in range(2))
    assert [t.reward for t in found] == [1.0] * 8
    assert len(lines_of(run_dir / TRAJECTORIES)) == 8
    assert sorted(t.attempts for t in found) == [1] * 6 + [2] * 2


def owned_by(runtime: hr.Runtime, pid: int) -> list[str]:
    return [found.record.id for found in runtime.containers() if found.owner.pid == pid]


def test_a_model_server_that_is_down_ends_the_command_with_one_sentence(
    runtime: hr.Runtime,
    runtime_name: str,
    base_image: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir = tmp_path / "run"
    assert main(arguments(runtime_name, "http://127.0.0.1:9/v1", run_dir)) == 1
    (last,) = capsys.readouterr().err.splitlines()  # no line says that the run began
    assert last.startswith("hyperrun: error: no model server answers at http://127.0.0.1:9/v1 (")
    assert last.endswith("; start it, or correct --base-url")
    assert not run_dir.exists()


def test_options_come_from_a_file_unless_the_command_line_sets_them(
    runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    with scripted_model(fixing) as model:
        text = f"""
        [rollout]
        environment = '{WORLD}'
        model = "m"
        base-url = "{model.url}"
        group_size = 3
        option = {{ count = 1 }}
        """
        (tmp_path / "rollout.toml").write_text(text)
        options = ["--config", str(tmp_path / "rollout.toml"), "--group_size", "1"]
        options += ["--output-dir", str(tmp_path / "run")]
        assert main(["--runtime", runtime_name, "rollout", "run", *options]) == 0
        assert main(["--runtime", runtime_name, "rollout", "run", *options]) == 2
    assert [t.id for t in read_trajectories(tmp_path / "run")] == ["n0/0"]


@pytest.mark.slow
def test_rollouts_beyond_the_number_of_slots_start_only_when_a_slot_is_free(
    runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    with scripted_model(fixing) as model:
        more = ("--option", "count=3", "--parallel", "3", "--max-containers", "1")
        assert main(arguments(runtime_name, model.url, tmp_path, *more)) == 0
    spans = sorted(
        (t.started_at, t.started_at + t.timing["total_s"]) for t in read_trajectories(tmp_path)
    )
    assert len(spans) == 3
    assert all(later[0] >= earlier[1] - 0.1 for earlier, later in itertools.pairwise(spans))
