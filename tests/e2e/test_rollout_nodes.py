"""Rollouts on nodes, with processes of this machine in place of jobs, on a real engine."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hyperruntime.cli import main
from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.rollouts.node_episodes import run_rollouts_on
from hyperruntime.host.process import wait_until
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.progress import RolloutEvent
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, read_groups, read_trajectories
from hyperruntime.rollout.run_files.turn_journal import TURNS
from hyperruntime.testing.model import ModelReply, calls, says, scripted_model
from tests.command import cli
from tests.doubles.relay import relay_nodes
from tests.doubles.words import timeless
from tests.e2e.rollout_world import WORLD, rollout
from tests.e2e.test_rollout import number_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TURNS_EACH = 4


def counting(request: Mapping[str, Any]) -> ModelReply:
    """Append a line in each of some turns; the container with all of them has the right answer."""
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    if turn == TURNS_EACH:
        return says("done")
    wanted = f"[ $(wc -l <log) = {TURNS_EACH} ] && echo {number_of(request)} >answer.txt"
    return calls(bash={"command": f"echo {turn} >>log; sleep 0.3; cat log; {wanted} || true"})


def assert_whole(run_dir: Path, alone: Path) -> None:
    assert timeless(run_dir) == timeless(alone)
    assert sorted(read_groups(run_dir), key=str) == sorted(read_groups(alone), key=str)
    assert len((run_dir / TRAJECTORIES).read_bytes().splitlines()) == len(timeless(alone))
    assert not (run_dir / TURNS).exists()


def arguments(url: str, run_dir: Path, *more: str) -> list[str]:
    options = ("--option=count=4", "--group-size=2", "--parallel=4", "--seed=5")
    return rollout(url, run_dir, *options, *more)


def known_turns(run_dir: Path) -> int:
    """Return how many turns are recorded or journaled."""
    recorded = {each.id: each.turns for each in read_trajectories(run_dir)}
    journals = [path.read_bytes().splitlines() for path in (run_dir / TURNS).glob("*")]
    begun = [lines for lines in journals if json.loads(lines[0])["trajectory"] not in recorded]
    return sum(recorded.values()) + sum(
        b'{"is":"turn"' in line for lines in begun for line in lines
    )


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """End what outlives a killed head: Parsl's own processes."""
    yield
    for one in psutil.process_iter(["cmdline"]):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            words = (*(one.info["cmdline"] or ()), *(file.path for file in one.open_files()))
            if one.pid != os.getpid() and any(str(tmp_path) in word for word in words):
                for process in (*one.children(recursive=True), one):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
    gc.collect()  # Parsl leaves files and sockets to the garbage collector


@pytest.mark.slow
def test_nodes_make_the_records_of_one_machine_also_if_the_head_is_killed(
    runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    table = (
        f'[cluster]\nprovider = "local"\nmax_nodes = 2\nruntime = "{runtime_name}"\npatience_s '
        "= 3.0\n"
    )
    (tmp_path / "cluster.toml").write_text(table)
    run_dir, on_nodes = tmp_path / "run", ["--cluster", str(tmp_path / "cluster.toml")]
    with scripted_model(counting) as model:
        assert main(["--runtime", runtime_name, *arguments(model.url, tmp_path / "alone")]) == 0
        asked = len(model.requests)
        words = cli(*arguments(model.url, run_dir, *on_nodes))
        with subprocess.Popen(words, stderr=subprocess.PIPE) as head:
            assert wait_until(
                lambda: (
                    sum(p.read_bytes().count(b'"call"') for p in (run_dir / TURNS).glob("*")) > 4
                ),
                90,
            )
            os.kill(head.pid, signal.SIGKILL)
        time.sleep(0.1)
        known = known_turns(run_dir)
        between = len(model.requests)
        resume = cli("rollout", "run", "--resume-from", str(run_dir), *on_nodes)
        done = subprocess.run(resume, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 0, shlex.join(words) + done.stderr.decode()
        assert len(model.requests) - between == asked - known
    assert_whole(run_dir, tmp_path / "alone")
    assert max(each.attempts for each in read_trajectories(run_dir)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("why", ["killed", "a short partition", "a long partition"])
def test_a_lost_node_costs_no_trajectory_and_no_journaled_call(
    runtime_name: str, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Nodes are given up after 5 s; a relay is silent for 2 s, which costs nothing, or for 15 s."""
    run_dir = tmp_path / "run"
    lost: list[int] = []
    relays = relay_nodes(monkeypatch)

    async def run(options: RolloutOptions) -> None:
        config = ClusterConfig(max_nodes=2, runtime=runtime_name, patience_s=5.0, heartbeat_s=1.0)
        async with Cluster(config, tmp_path / "jobs") as cluster:

            def lose(event: RolloutEvent) -> None:
                if event.kind == "done" and not lost:
                    lost.append(cluster.nodes()[0].facts.pid)
                    if why == "killed":
                        psutil.Process(lost[0]).kill()
                    else:
                        relays[0].fail("silent")
                        asyncio.get_running_loop().call_later(
                            2 if "short" in why else 15, relays[0].recover
                        )

            summary = await run_rollouts_on(
                nullcontext(cluster), options, run_dir=run_dir, on_event=lose
            )
        assert (summary.scored, summary.infrastructure, len(lost)) == (8, 0, 1)

    with scripted_model(counting) as model:
        assert main(["--runtime", runtime_name, *arguments(model.url, tmp_path / "alone")]) == 0
        options = RolloutOptions(
            environment=WORLD,
            environment_options={"count": "4"},
            group_size=2,
            parallel=4,
            seed=5,
            attempts=1,
            model=ModelOptions(name="m", base_url=model.url),
        )
        before = len(model.requests)
        asyncio.run(asyncio.wait_for(run(options), 200))
        # The loss may cost the answer of each of the node's two trajectories before it was
        # journaled.
        assert before <= len(model.requests) - before <= before + (0 if "short" in why else 2)
    assert_whole(run_dir, tmp_path / "alone")
