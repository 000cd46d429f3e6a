"""Generations on nodes of this machine: the same scores, nodes that die, and models whose key stays
on the head.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from operator import ge
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest

from hyperruntime import Runtime
from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.generations.executor import RunCluster
from hyperruntime.host.process import wait_until
from hyperruntime.loop.run.plan import NewRunPlan, plan_run
from hyperruntime.loop.run.run import start_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.workbench.events import StepEvent
from tests.command import cli
from tests.doubles.fake_runtime import make_agent_repository
from tests.doubles.relay import Relay, relay_nodes
from tests.doubles.upstream import chat_stream, scripted_upstream

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KEY = "sk-of-the-head-0123456789"
# The view is the only directory of the run that a meta agent sees: it waits until a file in it is
# gone.
WAIT = "import time\nwhile os.path.exists(f'{evals}/wait'):\n    time.sleep(0.05)\n"
ASK = """
import json, urllib.request
body = json.dumps({"model": "m", "messages": [], "stream": True}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
with urllib.request.urlopen(asked) as answer:
    said = answer.read()
assert b"one" in said and b"[DONE]" in said, said
"""


@pytest.fixture
def planned(
    tmp_path: Path, base_image: str, request: pytest.FixtureRequest
) -> Callable[..., NewRunPlan]:
    """Return a function that plans a run of an agent with scripted generations."""

    def plan(actions: dict[int, str] | None = None, **options: Any) -> NewRunPlan:
        agent = tmp_path / "an agent's repo"
        if not agent.exists():
            make_agent_repository(agent, actions)
        known: dict[str, Any] = {
            "max_generation": 2,
            "parallel": 2,
            "seed": 3,
            "eval_samples": (1,),
            **options,
        }
        name = f"{tmp_path.parent.name}.{tmp_path.name}"
        home = str(tmp_path / known.pop("out", "out"))
        return plan_run(
            GenerateOptions(
                domains="circle_packing",
                agent=str(agent),
                image=base_image,
                run_id=name,
                output_dir_parent=home,
                **known,
            )
        )

    return plan


@pytest.fixture
def config(runtime_name: str, tmp_path: Path) -> ClusterConfig:
    """Return two nodes that are processes of this machine, with the engine under test."""
    (tmp_path / "scratch").mkdir()
    return ClusterConfig(
        max_nodes=2,
        patience_s=5.0,
        heartbeat_s=1.0,
        runtime=runtime_name,
        scratch=str(tmp_path / "scratch"),
    )


def same(records: tuple[GenerationRecord, ...]) -> list[GenerationRecord]:
    """Return the records without times, in the order of their ids: two at once end in any order."""
    records = tuple(sorted(records, key=lambda record: str(record.genid)))
    return [attrs.evolve(record, durations={}, started="") for record in records]


def run_on(
    nodes: RunCluster, plan: NewRunPlan, on_event: Callable[[StepEvent], None] | None = None
) -> Any:
    return start_run(nodes.runtime, attrs.evolve(plan, make_executor=nodes.executor), on_event)


def node_processes(run_dir: Path) -> list[psutil.Process]:
    """Return the processes of all nodes, whose command lines have the jobs' directory, and those
    below.
    """
    jobs = f"/.{run_dir.name}.jobs-"
    tops = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any("node_job" in word for word in process.info["cmdline"] or ())
        and any(jobs in word for word in process.info["cmdline"])
        and process.name() != "bash"
    ]
    return list(
        {one.pid: one for top in tops for one in (top, *top.children(recursive=True))}.values()
    )


@pytest.mark.slow
def test_a_run_on_two_nodes_has_the_scores_of_one_machine_and_leaves_nothing(
    planned: Callable[..., NewRunPlan], config: ClusterConfig, runtime: Runtime, tmp_path: Path
) -> None:
    alone = start_run(runtime, planned(out="alone"))
    plan = planned()
    with RunCluster(config, plan.layout.root) as nodes:
        summary = run_on(nodes, plan)
        assert node_processes(plan.layout.root)
    assert [record.failure for record in summary.generations] == [None] * 3
    assert same(summary.generations) == same(alone.generations)
    assert wait_until(lambda: not node_processes(plan.layout.root), 120)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == [plan.layout.root.name]


async def silence(relays: list[Relay], seconds: float) -> None:
    for relay in relays:
        relay.fail("silent")
    await asyncio.sleep(seconds)
    for relay in relays:
        relay.recover()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("why", "relays_that_fail", "attempts"),
    [
        ("its processes are killed", 0, [1, 1, 2]),
        ("a short partition", 1, [1, 1, 1]),
        ("a long partition", 1, [1, 1, 2]),
        ("a long partition of all nodes", 8, [1, 2, 2]),
    ],
)
def test_generations_of_a_lost_node_are_made_again_elsewhere(
    planned: Callable[..., NewRunPlan],
    config: ClusterConfig,
    runtime: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    relays_that_fail: int,
    attempts: list[int],
) -> None:
    """Nodes are given up after 5 s; a relay, or each of them, is silent for 2 s, which costs
    nothing, or for 15 s.
    """
    plan = planned({1: WAIT + "improve()", 2: WAIT + "improve()"})
    wait, reached, both = plan.layout.view / "wait", set[str](), threading.Event()
    relays = relay_nodes(monkeypatch)

    def on_event(event: StepEvent) -> None:
        if (event.generation, event.step) == ("initial", "generation"):
            wait.touch()
        if (event.step, event.state) == ("meta agent", "start"):
            reached.add(event.generation)
            if len(reached) == 2:
                both.set()

    def lose() -> None:
        both.wait(120)
        if relays_that_fail:
            nodes._loop.run(silence(relays[:relays_that_fail], 2 if "short" in why else 15))
        else:
            node = nodes._cluster.nodes()[0]
            top = psutil.Process(node.facts.pid)
            for process in (top, *top.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        wait.unlink()

    with RunCluster(config, plan.layout.root) as nodes:
        losing = threading.Thread(target=lose)
        losing.start()
        summary = run_on(nodes, plan, on_event)
        losing.join()
    assert [record.failure for record in summary.generations] == [None] * 3
    made = sorted(record.attempts for record in summary.generations)
    # A machine with much to do may be silent for 5 s itself, which costs one more attempt.
    assert made == attempts or ("long" in why and all(map(ge, made, attempts))), made
    assert len({record.genid for record in load_run(summary.run_dir).generations}) == 3
    mine = f"{tmp_path.parent.name}.{tmp_path.name}"
    assert wait_until(
        lambda: (
            not [
                c
                for c in runtime.containers()
                if c.record.labels.get("io.hyperruntime.run") == mine
            ]
        ),
        20,
    )


@pytest.mark.slow
def test_agents_on_nodes_ask_models_and_the_key_is_on_no_node(
    planned: Callable[..., NewRunPlan],
    config: ClusterConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[str] = []

    def search() -> None:
        processes = node_processes(plan.layout.root)
        environments = [Path(f"/proc/{process.pid}/environ") for process in processes]
        files = [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]
        assert len(processes) > 2
        assert files
        for path in (*environments, *files):
            try:
                content = path.read_bytes()
            except OSError:
                continue  # of a container, or gone meanwhile
            if KEY.encode() in content:
                found.append(str(path))

    with scripted_upstream(lambda _: chat_stream("one", "two", pause_s=0.2)) as upstream:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.url)
        plan = planned({1: ASK + WAIT + "improve()", 2: ASK + "improve()"}, budget_requests=10)

        def on_event(event: StepEvent) -> None:
            if (event.generation, event.step) == ("initial", "generation"):
                (plan.layout.view / "wait").touch()
            if (event.generation, event.step, event.state) == ("2", "generation", "done"):
                search()
                (plan.layout.view / "wait").unlink()

        with RunCluster(config, plan.layout.root) as nodes:
            summary = run_on(nodes, plan, on_event)
    assert [record.failure for record in summary.generations] == [None] * 3, summary.generations
    assert found == []
    assert {received.headers["authorization"] for received in upstream.received} == {
        f"Bearer {KEY}"
    }
    assert [record.usage and record.usage.requests for record in summary.generations] == [0, 1, 1]
    for path in plan.layout.root.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def status_with_a_container(run_dir: str) -> str:
    """Return what `hyperrun status` says as soon as it names a container; the agent waits
    meanwhile.
    """
    view, said = Layout(Path(run_dir)).view, ""
    assert wait_until(view.is_dir, 60)
    (view / "wait").touch()

    def names_one() -> bool:
        nonlocal said
        done = subprocess.run(cli("status", run_dir), capture_output=True)
        said = done.stdout.decode()
        return "\ncontainer " in said

    wait_until(names_one, 90, 0.5)
    (view / "wait").unlink()
    return said


def test_the_command_line_needs_no_engine_on_the_head(
    config: ClusterConfig,
    tmp_path: Path,
    base_image: str,
    runtime_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hyperruntime.cli import main

    def no_engine(*_: object, **__: object) -> None:
        raise AssertionError("an engine was opened on the head")

    agent = make_agent_repository(tmp_path / "agent", {1: WAIT + "improve()"})
    (tmp_path / "c.toml").write_text(
        f'[cluster]\nprovider = "local"\nmax_nodes = 1\nruntime = "{runtime_name}"\nscratch = '
        f'"{config.scratch}"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hyperruntime.runtime.open_runtime", no_engine)
    given = [
        "--domains",
        "circle_packing",
        "--agent",
        str(agent),
        "--image",
        base_image,
        "--eval-samples",
        "1",
    ]
    with ThreadPoolExecutor() as threads:
        said = threads.submit(status_with_a_container, str(tmp_path / "outputs" / "generate_r"))
        assert (
            main(
                [
                    "generate",
                    *given,
                    "--run-id",
                    "r",
                    "--max-generation",
                    "1",
                    "--cluster",
                    "c.toml",
                ]
            )
            == 0
        )
    assert re.search(
        r"^container hyperruntime-\S+ on node-1 \(\S+\)$", said.result(), re.MULTILINE
    ), said.result()
    more = ["--max-generation", "2", "--parallel", "64"]
    assert main(["resume", "outputs/generate_r", "--cluster", "c.toml", *more]) == 0
    assert len(load_run("outputs/generate_r").generations) == 3
