"""T1: the installed ``hyperrun rollout batch``: prompts with several images, kills, and results."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.host.process import wait_until
from hyperruntime.testing.model import ModelReply, Request, calls, says, scripted_model
from tests.command import program

pytestmark = pytest.mark.engine


def command(runtime_name: str, prompts: Path, url: str, *args: str) -> list[str]:
    words = [program(), "--runtime", runtime_name, "rollout", "batch", str(prompts)]
    words += ["--model", "scripted", "--base-url", url]
    return [*words, "--output-dir", str(prompts.parent / "out"), *args]


def hyperrun(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)


@contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a program; kill it at the end of the block."""
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def lines(out: Path) -> list[dict[str, Any]]:
    found = []
    for line in (out / "results.jsonl").read_bytes().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # truncated by a kill
    return found


def works(request: Request) -> ModelReply:
    """Run a command that lists the directory and leaves a note; then answer with its output."""
    messages = request["messages"]
    if messages[-1]["role"] == "tool":
        return says(str(json.loads(messages[-1]["content"])["output"]))
    return calls(bash={"command": "pwd; ls -A; cat note 2>/dev/null; echo x >note; sleep 0.05"})


def test_every_row_runs_in_its_own_slot_with_its_image(
    runtime_name: str, runtime: hr.Runtime, base_image: str, bash_image: str, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        *({"prompt": "look", "id": f"plain{n}", "level": n} for n in range(4)),
        {"prompt": "look", "id": "elsewhere", "image": bash_image, "cwd": "/usr/games"},
        {"prompt": "look", "id": "missing", "docker_image": "localhost/hyperruntime/none:such"},
    ]
    prompts = write(tmp_path / "prompts.jsonl", rows)
    with scripted_model(works) as model:
        done = hyperrun(
            *command(
                runtime_name, prompts, model.url, "--parallel", "3", "--json", "--attempts", "1"
            )
        )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["done"] == 5
    assert "level" in done.stderr
    assert "row missing failed" in done.stderr
    found = {line["id"]: line for line in lines(tmp_path / "out")}
    for number in range(4):
        line = found[f"plain{number}"]
        assert line["messages"][-1]["content"] == "/workspace\n"  # and no file of another row
        assert (line["row"]["level"], line["turns"], line["status"]) == (number, 2, "done")
    assert found["elsewhere"]["messages"][-1]["content"].startswith("/usr/games\n")
    assert found["missing"]["status"] == "failed"
    assert "not on this machine" in found["missing"]["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_a_killed_batch_can_be_resumed_and_leaves_no_container(
    number: signal.Signals, code: int, runtime_name: str, runtime: hr.Runtime, base_image: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    rows = [{"prompt": "look", "id": f"r{n}"} for n in range(12)]
    prompts = write(tmp_path / "prompts.jsonl", rows)
    results = tmp_path / "out" / "results.jsonl"
    with scripted_model(works) as model:
        words = command(runtime_name, prompts, model.url, "--parallel", "2")
        with started(words) as process:
            assert wait_until(
                lambda: results.exists() and results.read_bytes().count(b"\n") >= 3, 120
            )
            process.send_signal(number)
            said = process.communicate(timeout=60)[1]
        assert process.returncode == code, said
        assert number == signal.SIGKILL or "interrupted" in said
        assert wait_until(
            lambda: all(found.owner.pid != process.pid for found in runtime.containers()), 60
        )
        done = hyperrun(*words)
        assert done.returncode == 0, done.stderr
        assert "settled before" in done.stderr
        again = hyperrun(*words)
        assert again.returncode == 0, again.stderr
    assert Counter(line["id"] for line in lines(tmp_path / "out")) == Counter(
        f"r{n}" for n in range(12)
    )
