"""``--watch`` of a real run: its page is served beside the run, and ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hyperruntime import Runtime
from hyperruntime.testing.model import ModelReply, says, scripted_model
from tests.command import cli
from tests.doubles.fake_runtime import make_agent_repository
from tests.e2e.rollout_world import rollout
from tests.runs import run_name

pytestmark = pytest.mark.engine
SAID = "watch it at "


def watched(folder: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """Start a command with ``--watch``; return it and the address that it says."""
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    process = subprocess.Popen(
        cli(*words, "--watch"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert process.stderr is not None
    said = next(line for line in process.stderr if line.startswith(SAID))
    return process, said.strip().removeprefix(SAID)


def events(address: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a page until its server ends."""
    name = ""
    with urllib.request.urlopen(f"{address}events", timeout=250) as stream:
        for raw in stream:
            field, _, value = raw.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            if field == "data":
                yield {"event": name, **json.loads(value)}


@pytest.mark.parametrize("made_by", ["this machine", pytest.param("nodes", marks=pytest.mark.slow)])
def test_a_run_serves_its_page_while_it_goes_on(
    tmp_path: Path, runtime: Runtime, base_image: str, made_by: str
) -> None:
    agent = tmp_path / "agent"
    make_agent_repository(agent)
    (tmp_path / "cluster.toml").write_text('[cluster]\nprovider = "local"\nmax_nodes = 2\n')
    words = ["generate", "--domains=circle_packing", f"--agent={agent}", f"--image={base_image}"]
    words += ["--max-generation=500", "--eval-samples=1", f"--run-id={run_name(tmp_path)}"]
    words += [f"--output-dir-parent={tmp_path}"]
    words += ["--cluster", str(tmp_path / "cluster.toml")] if made_by == "nodes" else []
    process, address = watched(tmp_path, "--runtime", runtime.name, *words)
    found, made = [], set[str]()
    for event in events(address):
        found.append(event)
        before = "1" in made
        made |= set(event.get("rows", {}).get("ids", ()))
        if "1" in made and not before:
            process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.wait(120) == 130
    assert [one["event"] for one in found[-2:]] == ["news", "end"]
    assert found[0]["state"] == "running"
    assert found[-2]["state"] == "interrupted"
    assert {"initial", "1"} <= made


@pytest.mark.slow
def test_rollouts_serve_their_page_too(tmp_path: Path, runtime: Runtime, base_image: str) -> None:
    seen = threading.Event()

    def answer(request: Mapping[str, Any]) -> ModelReply:
        assert seen.wait(200), "the page is open before the first trajectory ends"
        return says("done")

    with scripted_model(answer) as model:
        words = rollout(model.url, tmp_path / "run", "--group-size=1")
        process, address = watched(tmp_path, "--runtime", runtime.name, *words)
        found = []
        for event in events(address):
            seen.set()
            found.append(event)
        process.communicate()
        assert process.wait(60) == 0
    assert (found[0]["state"], found[-2]["state"], found[-1]["event"]) == (
        "running",
        "not running",
        "end",
    )
    assert sorted(name for one in found[:-1] for name in one["rows"]["ids"]) == ["n0/0", "n1/0"]
    assert {score for one in found[:-1] for score in one["rows"]["score"]} == {0}
