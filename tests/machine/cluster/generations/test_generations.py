"""Generations on nodes, without engines: the same as on one machine, made again after a loss, and
counted once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

from hyperruntime.cluster.generations.executor import ClusterExecutor, NoEngine
from hyperruntime.cluster.generations.models import NodeModels
from hyperruntime.cluster.generations.service import GenerationService
from hyperruntime.cluster.generations.shared_run import remove_unfinished
from hyperruntime.cluster.head import Head, Node
from hyperruntime.cluster.node_server import run_node
from hyperruntime.cluster.node_services import NodeContext, NodeService, NodeSettings
from hyperruntime.concurrency.bridge import Bridge, cancel_other_tasks
from hyperruntime.errors import ClusterError, EngineUnavailableError, NodeLostError, RunError
from hyperruntime.host.process import wait_until
from hyperruntime.host.temporary import SCRATCH
from hyperruntime.loop.run.plan import plan_resume, plan_run
from hyperruntime.loop.run.run import GenerationTask, RunSummary, resume_run, start_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.runs.lock import RunLock
from hyperruntime.runs.retry import ITEMS_IN_A_ROW, MOST_FAULTS, MOST_LOSSES
from hyperruntime.storage.atomic import finish_directory
from hyperruntime.wire.peer import Call
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository

# While a file "hang" is in the run's directory, a meta agent waits; it says so in the file "hangs".
HANG = """
import time
run_dir = os.path.dirname(os.path.realpath(evals))
open(f"{run_dir}/hangs", "w").close()
while os.path.exists(f"{run_dir}/hang"):
    time.sleep(0.01)
improve()
"""


class FakeContext(NodeContext):
    """A node's context with a fake runtime."""

    def __init__(self, settings: NodeSettings, fake: FakeRuntime | None) -> None:
        super().__init__(settings)
        self.fake = fake

    async def runtime(self) -> Any:
        if self.fake is None:
            raise EngineUnavailableError("fake", "this node has none", "use another node")
        return self.fake


class FakeNodes:
    """Node servers in this process, all there at once, in place of a cluster."""

    def __init__(self, runtimes: list[FakeRuntime | None], scratch: Path) -> None:
        self.runtimes = runtimes
        self.error: ClusterError | None = None
        self.models = NodeModels(scratch)
        self.head = Head(self.models.handlers, heartbeat_s=1.0, patience_s=20.0)
        self.loop = Bridge("nodes", ClusterError)
        self.serving: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        await self.head.start("127.0.0.1")
        for number, fake in enumerate(self.runtimes):
            invitation = self.head.invite(f"n{number}")
            self.serving.append(asyncio.ensure_future(self._serve(invitation, fake)))
            await asyncio.wait_for(self.head.nodes[invitation.name].joined.wait(), 120)

    async def _serve(self, invitation: Any, fake: FakeRuntime | None) -> None:
        def services(context: NodeContext) -> list[NodeService]:
            context.__class__, context.fake = FakeContext, fake  # type: ignore[attr-defined]
            return [GenerationService(context)]

        await run_node(invitation, NodeSettings(), services)

    async def stop(self) -> None:
        await self.head.stop()
        for task in self.serving:
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)
        await cancel_other_tasks()

    def nodes(self) -> list[Node]:
        return [node for node in self.head.nodes.values() if node.lost is None and not node.leaving]

    def want(self, count: int) -> None:
        if not self.nodes():
            self.error = ClusterError("no node is left")

    def on_node(self, function: Callable[[Node], None]) -> None:
        for node in self.nodes():
            function(node)

    def lose(self, name: str) -> None:
        """Give a node up, as after a partition; its process goes on until it learns of it."""
        self.loop.run(self._lose(name))

    async def _lose(self, name: str) -> None:
        self.head.nodes[name].lose("the test says so")

    def executor(self, parallel: int) -> ClusterExecutor:
        return ClusterExecutor(
            self.loop, cast(Any, self), self.models, parallel, len(self.runtimes)
        )


@contextmanager
def nodes(place: Path, *runtimes: FakeRuntime | None) -> Iterator[FakeNodes]:
    scratch = place / "scratch"
    scratch.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv(SCRATCH, str(scratch))
        made = FakeNodes(list(runtimes), scratch)
        made.loop.run(made.start())
        try:
            yield made
        finally:
            made.loop.run(made.stop())
            made.loop.close()
    assert list(scratch.iterdir()) == []


def options(place: Path, actions: dict[int, str] | None = None, **more: Any) -> GenerateOptions:
    agent = place / "agent"
    if not agent.exists():
        make_agent_repository(agent, actions)
    known: dict[str, Any] = {
        "max_generation": 3,
        "seed": 3,
        "eval_samples": (1,),
        "run_id": "r",
        **more,
    }
    return GenerateOptions(
        domains="circle_packing",
        agent=str(agent),
        output_dir_parent=str(place / known.pop("out", "out")),
        **known,
    )


def run_on(
    made: FakeNodes, chosen: GenerateOptions, on_event: Callable[[StepEvent], None] | None = None
) -> RunSummary:
    plan = attrs.evolve(plan_run(chosen), make_executor=made.executor)
    return start_run(NoEngine(), plan, on_event)


def same(records: tuple[GenerationRecord, ...]) -> list[GenerationRecord]:
    """Return the records without times."""
    return [attrs.evolve(record, durations={}, started="") for record in records]


def files_of(run_dir: str) -> set[str]:
    return {str(path.relative_to(run_dir)) for path in Path(run_dir).glob("gen_*/**/*")}


def test_a_run_on_nodes_gives_what_one_machine_gives_and_the_head_starts_no_container(
    tmp_path: Path,
) -> None:
    actions = {
        2: "raise SystemExit(3)",
        3: "open('new.txt', 'wb').write(bytes(range(256)))\nimprove()",
    }
    alone = start_run(FakeRuntime(), plan_run(options(tmp_path, actions, out="alone")))
    fakes, events = (FakeRuntime(), FakeRuntime()), list[StepEvent]()
    with nodes(tmp_path, *fakes) as made:
        summary = run_on(made, options(tmp_path), events.append)
        assert same(summary.generations) == same(alone.generations)
        assert files_of(summary.run_dir) == files_of(alone.run_dir)
        told = [(event.step, event.state) for event in events if event.generation == "1"]
        assert told[:2] == [("image", "start"), ("image", "done")]
        assert told[-1] == ("generation", "done")
        again = resume_run(
            NoEngine(),
            attrs.evolve(
                plan_resume(summary.run_dir, max_generation=4), make_executor=made.executor
            ),
        )
    assert again.generations[-1].genid == 4
    assert [fake.open for fake in fakes] == [[], []]
    assert os.listdir(Path(summary.run_dir) / "work") == []


def test_more_generations_than_nodes_run_at_once_and_are_spread(tmp_path: Path) -> None:
    """Each of eight meta agents waits until all eight are there."""
    meet = HANG.split("open(", maxsplit=1)[0] + (
        "open(f'{run_dir}/here_{generation}', 'w').close()\nwhile sum(n.startswith('here_') for "
        "n in os.listdir(run_dir)) < 8:\n    time.sleep(0.01)\nimprove()"
    )
    fakes = FakeRuntime(), FakeRuntime()
    with nodes(tmp_path, *fakes) as made:
        actions = dict.fromkeys(range(1, 9), meet)
        summary = run_on(made, options(tmp_path, actions, max_generation=8, parallel=8))
    assert [record.failure for record in summary.generations] == [None] * 9
    assert sorted(fake.started for fake in fakes) == [8, 9]


def test_a_generation_whose_node_is_lost_is_made_again_elsewhere_and_counts_once(
    tmp_path: Path,
) -> None:
    with nodes(tmp_path, FakeRuntime(), FakeRuntime()) as made:
        run_dir = tmp_path / "out" / "generate_r"
        left: list[Path] = []

        def lose() -> None:
            wait_until((run_dir / "hangs").exists, 60)
            busy = next(name for name, node in made.head.nodes.items() if node.uses)
            made.lose(busy)
            left.extend(
                [
                    run_dir / "work" / f"gen_1.{'a' * 32}",
                    run_dir / "work" / f".gen_1.{'b' * 32}.partial",
                ]
            )
            for path in left:
                path.mkdir()
            (run_dir / "hang").unlink()  # the lost node's agent goes on, too

        def on_event(event: StepEvent) -> None:
            if (event.generation, event.step) == ("initial", "generation"):
                (run_dir / "hang").touch()

        loser = threading.Thread(target=lose)
        loser.start()
        summary = run_on(made, options(tmp_path, {1: HANG}, max_generation=2), on_event)
        loser.join()
        remove_unfinished(Layout(run_dir))
    assert not any(path.exists() for path in left)
    assert [(record.genid, record.attempts) for record in summary.generations] == [
        ("initial", 1),
        (1, 2),
        (2, 1),
    ]
    lines = (run_dir / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["current_genid"] for line in lines] == ["initial", 1, 2]
    alone = start_run(FakeRuntime(), plan_run(options(tmp_path, max_generation=2, out="alone")))
    assert [record.commit for record in summary.generations] == [
        record.commit for record in alone.generations
    ]


def test_a_resume_that_is_refused_leaves_what_nodes_of_the_live_run_have_made(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path / "run")
    moved = layout.work / f"gen_1.{'a' * 32}"
    moved.mkdir(parents=True)
    with RunLock(layout.root):
        remove_unfinished(layout)
        assert moved.is_dir()
    remove_unfinished(layout)
    assert not moved.exists()


def test_what_a_generation_does_after_its_job_was_told_to_end_is_not_blamed_on_it(
    tmp_path: Path,
) -> None:
    """Slurm sends SIGTERM to all processes of a cancelled job, also to those in containers:
    scancel(1).
    """
    with nodes(tmp_path, FakeRuntime(), FakeRuntime()) as made:
        run_dir = tmp_path / "out" / "generate_r"

        async def tell() -> None:
            node = next(node for node in made.head.nodes.values() if node.uses)
            await made.head._leaving(
                Call(node.name, {"why": "the batch system ends its job"}, b"", None)  # type: ignore[arg-type]
            )

        def end() -> None:
            wait_until((run_dir / "hangs").exists, 60)
            made.loop.run(tell())
            (run_dir / "hang").unlink()

        def on_event(event: StepEvent) -> None:
            if (event.generation, event.step) == ("initial", "generation"):
                (run_dir / "hang").touch()

        # The first time, the meta agent hangs and then fails, as one that was told to end.
        action = HANG.replace("improve()", "if again: improve()\nelse: raise SystemExit(143)")
        action = action.replace(
            'open(f"{run_dir}/hangs"',
            "again = os.path.exists(f'{run_dir}/hangs')\nopen(f\"{run_dir}/hangs\"",
        )
        ending = threading.Thread(target=end)
        ending.start()
        summary = run_on(made, options(tmp_path, {1: action}, max_generation=1), on_event)
        ending.join()
    assert [(record.failure, record.attempts) for record in summary.generations] == [
        (None, 1),
        (None, 2),
    ]


def test_an_interrupt_ends_what_runs_on_nodes_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    run_dir = tmp_path / "out" / "generate_r"

    def on_event(event: StepEvent) -> None:
        if (event.generation, event.step) == ("initial", "generation"):
            (run_dir / "hang").touch()

    def interrupt() -> None:
        wait_until((run_dir / "hangs").exists, 60)
        os.kill(os.getpid(), signal.SIGINT)

    with nodes(tmp_path, fake := FakeRuntime()) as made:
        stopping = threading.Thread(target=interrupt)
        stopping.start()
        summary = run_on(made, options(tmp_path, {1: HANG}, max_generation=1), on_event)
        stopping.join()
        assert summary.interrupted
        assert [record.genid for record in summary.generations] == ["initial"]
        assert wait_until(lambda: fake.open == [], 120)
        (run_dir / "hang").unlink()
        done = resume_run(
            NoEngine(), attrs.evolve(plan_resume(run_dir), make_executor=made.executor)
        )
    assert [(record.genid, record.attempts) for record in done.generations] == [
        ("initial", 1),
        (1, 1),
    ]


def test_a_node_without_an_engine_is_not_used_again(tmp_path: Path) -> None:
    with nodes(tmp_path, None, FakeRuntime()) as made:
        summary = run_on(made, options(tmp_path, max_generation=1))
        assert made.head.nodes["n0"].leaving
    assert [(record.failure, record.attempts) for record in summary.generations] == [
        (None, 2),
        (None, 1),
    ]


def test_an_engine_that_no_node_has_ends_the_run_with_a_sentence_about_it(tmp_path: Path) -> None:
    with (
        nodes(tmp_path, *[None] * MOST_FAULTS) as made,
        pytest.raises(EngineUnavailableError, match="this node has none"),
    ):
        run_on(made, options(tmp_path))


def test_a_generation_that_was_lost_on_ten_nodes_failed_and_three_in_a_row_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_on = ClusterExecutor._make_on

    async def lose(self: ClusterExecutor, node: Node, task: GenerationTask) -> GenerationRecord:
        if task.plan.parent is None:
            return await make_on(self, node, task)
        raise NodeLostError("the test says so")

    monkeypatch.setattr(ClusterExecutor, "_make_on", lose)
    with (
        nodes(tmp_path, FakeRuntime()) as made,
        pytest.raises(RunError, match="generation 3 could not be made: lost on 10 nodes"),
    ):
        run_on(made, options(tmp_path, max_generation=9))
    found = load_run(tmp_path / "out" / "generate_r").generations
    assert [(record.genid, record.failure, record.attempts) for record in found[1:]] == [
        (number, "infrastructure", MOST_LOSSES) for number in range(1, ITEMS_IN_A_ROW + 1)
    ]


def test_files_that_a_simulated_nfs_shows_late_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(partial: Path, final: Path) -> None:
        kept = partial.rename(partial.with_name(f"{partial.name}.kept"))
        threading.Timer(1.0, finish_directory, (kept, final)).start()

    monkeypatch.setattr("hyperruntime.cluster.generations.shared_run.finish_directory", late)
    with nodes(tmp_path, FakeRuntime()) as made:
        summary = run_on(made, options(tmp_path, max_generation=1))
    assert [record.failure for record in summary.generations] == [None, None]
    assert load_run(summary.run_dir).state == "finished"
