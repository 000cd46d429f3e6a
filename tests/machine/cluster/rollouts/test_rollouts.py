"""Rollouts on nodes: the same records as on one machine, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import pytest

from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.head import Invitation, Node
from hyperruntime.cluster.node_jobs import JobEnd, NodeJob
from hyperruntime.cluster.node_server import run_node
from hyperruntime.cluster.node_services import NodeContext, NodeSettings
from hyperruntime.cluster.rollouts.episode_service import OPEN, RUN, EpisodeService
from hyperruntime.cluster.rollouts.node_episodes import NodeEpisodes, run_rollouts_on
from hyperruntime.cluster.rollouts.relayed_model import (
    PaidTurns,
    is_reachable_from_nodes,
    model_handler,
)
from hyperruntime.errors import (
    ClusterError,
    ContextLengthError,
    EngineUnavailableError,
    HyperRuntimeError,
    ModelError,
    NodeLostError,
    RunError,
    SpecError,
)
from hyperruntime.option_fields import to_json
from hyperruntime.rollout.agent.agent import Tools
from hyperruntime.rollout.agent.model import Completion, Model, Sampling
from hyperruntime.rollout.environment import Item
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.models.token_model import TokenModel
from hyperruntime.rollout.run.episode import EpisodeContext, Job, Specs
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import CompleteParts
from hyperruntime.rollout.run.set_ups import SetUps
from hyperruntime.rollout.run.summary import RolloutSummary
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, read_groups, read_trajectories
from hyperruntime.rollout.run_files.turn_journal import TURNS
from hyperruntime.runs.retry import MOST_LOSSES
from hyperruntime.testing.model import ModelReply, calls, says, scripted_model
from hyperruntime.wire.peer import Answer, Call, Handler
from tests.doubles.tokenserver import emitted, token_server
from tests.doubles.words import COMMANDS, TOOL, Adder, Boxes, Words, journaled, rollouts, timeless

WORDS = "tests.doubles.words:Words"
TERMINATED = '{"output": "", "exit_code": 143}'
OPTIONS = RolloutOptions(environment=WORDS, environment_options={"count": "12"}, seed=1, parallel=6)


class Nodes:
    """In place of jobs: node servers in this process, with containers that only hold
    words.
    """

    def __init__(self, config: ClusterConfig, files: Path, logs: Path) -> None:
        self.running: dict[str, asyncio.Task[None]] = {}
        self.contexts: list[NodeContext] = []
        self.walltime_s = None
        all_nodes.append(self)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def submit(self, invitation: Invitation, excluded: Collection[str]) -> NodeJob:
        job = NodeJob(invitation.name, "1")

        def services(context: NodeContext) -> list[EpisodeService]:
            self.contexts.append(context)
            return [EpisodeService(context)]

        node = asyncio.ensure_future(run_node(invitation, NodeSettings(), services))
        self.running[invitation.name] = node

        def on_end(_: object) -> None:
            del self.running[invitation.name]
            job.ended.set_result(JobEnd(kind="done"))

        node.add_done_callback(on_end)
        return job

    def look_soon(self) -> None: ...

    def kill(self, rng: random.Random) -> bool:
        if not self.running:
            return False
        self.running[rng.choice(sorted(self.running))].cancel()
        return True


all_nodes: list[Nodes] = []
all_boxes: list[Boxes] = []
terminated: list[Boxes] = []  # their commands are ended by SIGTERM


@asynccontextmanager
async def open_boxes(
    runtime: Any, options: RolloutOptions, parts: CompleteParts, ask: Callable[[str], None]
) -> AsyncIterator[EpisodeContext]:
    assert options.env_names == ()
    base = options.base_spec()
    boxes = Boxes()
    all_boxes.append(boxes)

    def tools(lease: Any) -> Tools:
        async def add(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
            answer: str = await lease.add(name, arguments, task_id)
            return TERMINATED if boxes in terminated else answer

        return Tools(schemas=[TOOL], handler=add)

    yield EpisodeContext(
        options=options,
        environment=parts.environment,
        model=parts.model,
        slots=cast(Any, boxes),
        specs=Specs(lambda item: base),
        toolset=tools,
        agent=parts.agent,
    )


async def _no_runtime(context: NodeContext) -> None:
    return


@pytest.fixture(autouse=True)
def nodes_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperruntime.cluster.cluster.NodeJobs", Nodes)
    monkeypatch.setattr("hyperruntime.cluster.starts._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("hyperruntime.cluster.rollouts.episode_service.open_here", open_boxes)
    monkeypatch.setattr(NodeContext, "runtime", _no_runtime)
    monkeypatch.setattr("hyperruntime.rollout.run.runner._RETRY_S", 0.001)
    for module in ("episode_service", "node_episodes"):
        monkeypatch.setattr(f"hyperruntime.cluster.rollouts.{module}.SETTLE_S", 0.03)
    for each in (all_nodes, all_boxes, terminated):
        each.clear()


class Seeded(Adder):
    """Says the same for the same seed and conversation; takes note of calls that it was paid for
    before.
    """

    def __init__(self, run_dir: Path | None = None, wait_s: float = 0.0) -> None:
        super().__init__(None, wait_s)
        self.repeated: list[tuple[str, int]] = []
        self.killed: list[int] = []
        self._run_dir = run_dir

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
    ) -> Completion:
        turn = (
            str(messages[0]["content"]),
            sum(message["role"] == "assistant" for message in messages),
        )
        if self._run_dir is not None and turn in journaled(self._run_dir):
            self.repeated.append(turn)
        return await super().complete(messages, tools, sampling)

    def number(self, sampling: Sampling) -> int:
        return sampling.seed or 0


def on_nodes(
    model: Model | None,
    run_dir: Path,
    options: RolloutOptions = OPTIONS,
    *,
    meanwhile: Callable[[], Any] = lambda: asyncio.sleep(0),
    keep: Callable[[Trajectory], None] = lambda _: None,
    most: int = 2,
) -> RolloutSummary:
    async def run() -> RolloutSummary:
        other = asyncio.ensure_future(meanwhile())
        try:
            cluster = Cluster(ClusterConfig(max_nodes=most, patience_s=5.0), run_dir)
            return await run_rollouts_on(cluster, options, run_dir=run_dir, model=model, keep=keep)
        finally:
            other.cancel()
            if model is not None:
                await model.close()

    return asyncio.run(asyncio.wait_for(run(), 120))


def assert_same(run_dir: Path, alone: Path) -> None:
    lines = Counter(
        json.loads(line)["id"] for line in (run_dir / TRAJECTORIES).read_bytes().splitlines()
    )
    assert set(lines.values()) == {1}
    assert [each.id for each in timeless(run_dir)] == [each.id for each in timeless(alone)]
    for one, other in zip(timeless(run_dir), timeless(alone), strict=True):
        # The text of a call tells the number of its container.
        assert [m for m in one.messages if m["role"] != "tool"] == [
            m for m in other.messages if m["role"] != "tool"
        ]
        assert attrs.evolve(one, messages=(), segments=(), usage={}) == attrs.evolve(
            other, messages=(), segments=(), usage={}
        )
        assert emitted(one.segments) == emitted(other.segments)
    by_item = [
        sorted(read_groups(place), key=lambda group: group.item_id) for place in (run_dir, alone)
    ]
    assert [attrs.evolve(each) for each in by_item[0]] == by_item[1]
    assert not (run_dir / TURNS).exists()


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """Return the directory of the same run on one machine."""
    rollouts(Boxes(), Seeded(), tmp_path / "alone", world=Words(count=12), environment=WORDS)
    return tmp_path / "alone"


def test_two_nodes_make_the_records_of_one_machine(alone: Path, tmp_path: Path) -> None:
    model = Seeded(wait_s=0.01)
    summary = on_nodes(model, tmp_path / "run")
    assert len(model.asked) == 12 * (COMMANDS + 1)
    assert (summary.scored, summary.mean_reward, summary.groups, summary.wanted) == (
        12,
        1.0,
        12,
        12,
    )
    assert_same(tmp_path / "run", alone)
    assert {each.attempts for each in read_trajectories(tmp_path / "run")} == {1}
    assert [len(nodes.running) for nodes in all_nodes] == [0]


def test_nodes_remove_what_they_keep_of_an_item_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: Counter[str] = Counter()

    async def end(_: object, item: Item) -> None:
        ended[item.id] += 1

    monkeypatch.setattr(SetUps, "end", end)
    on_nodes(Seeded(wait_s=0.01), tmp_path / "run", attrs.evolve(OPTIONS, group_size=2))
    assert len(ended) > 6  # the last ones end with the run
    assert max(ended.values()) <= 2  # once on each node


def test_a_trajectory_that_arrives_while_its_node_ends_is_left_to_another_node() -> None:
    async def test() -> None:
        async def emit(_: Answer) -> None: ...

        async def read() -> bytes:
            return b""

        context = NodeContext(NodeSettings())
        context.head = cast(Any, object())  # nothing comes as far as to call it
        service = EpisodeService(context)
        model = {"model": "m", "direct": False, "remembers": False}
        opening = {"run": "r", "options": to_json(OPTIONS), "env": {}, "directory": "", **model}
        await service.handlers[OPEN](Call("head", opening, b"", emit))
        asked = {"run": "r", "item": "i0", "index": 0, "attempts": 0}
        answer = asyncio.ensure_future(
            cast(Any, service.handlers[RUN](Call("head", asked, b"", emit, read)))
        )
        await asyncio.sleep(0)  # it has begun
        await service.close()
        assert (await answer).value == {"ends": True, "told": False}

    asyncio.run(test())


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_nodes_that_are_killed_cost_no_trajectory_and_no_journaled_model_call(
    kills: int, alone: Path, tmp_path: Path
) -> None:
    rng = random.Random(kills)

    class Fatal(Seeded):
        async def complete(self, *args: Any) -> Completion:
            if len(self.asked) % 11 == 10 and len(self.killed) < kills and all_nodes[-1].kill(rng):
                self.killed.append(len(self.asked))
            return await super().complete(*args)

    run_dir, count = tmp_path / "run", 12 * max(1, kills // 4)
    options = attrs.evolve(
        OPTIONS, environment_options={"count": str(count)}, attempts=1, give_up_after=1
    )
    model = Fatal(run_dir, wait_s=0.03)
    summary = on_nodes(model, run_dir, options)
    assert len(model.killed) > kills // 2
    assert (summary.scored, summary.infrastructure) == (count, 0)
    assert model.repeated == []
    assert len(model.asked) == count * (COMMANDS + 1), "a call was paid twice"
    found = read_trajectories(run_dir)
    assert max(each.attempts for each in found) > 1
    assert any(each.replay.get("turns") for each in found)
    assert all(len(emitted(each.segments)) == 2 * (COMMANDS + 1) for each in found)
    if count == 12:
        assert_same(run_dir, alone)


def test_what_commands_said_when_a_batch_system_ended_them_is_not_used(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("episode_service", "node_episodes"):
        monkeypatch.setattr(f"hyperruntime.cluster.rollouts.{module}.SETTLE_S", 0.3)
    run_dir = tmp_path / "run"

    async def terminate() -> None:
        while not (all_boxes and len(journaled(run_dir)) > 3):
            await asyncio.sleep(0.005)
        terminated.append(all_boxes[0])
        await asyncio.sleep(0.1)
        all_nodes[0].contexts[0].told_to_end.set()  # as by SIGTERM
        await asyncio.sleep(0.1)
        all_nodes[0].running["node-1"].cancel()

    about_terminated: list[object] = []

    class Asked(Seeded):
        async def complete(self, messages: Sequence[Mapping[str, Any]], *args: Any) -> Completion:
            about_terminated.extend(each for each in messages if each["content"] == TERMINATED)
            return await super().complete(messages, *args)

    model = Asked(run_dir, wait_s=0.05)
    summary = on_nodes(model, run_dir, meanwhile=terminate, most=1)
    assert (summary.scored, len(terminated)) == (12, 1)
    again = {item for item, _ in model.repeated}
    assert len(again) <= OPTIONS.parallel, "only what the node had under way"
    assert not about_terminated, "the model was asked about a command that SIGTERM ended"
    assert_same(run_dir, alone)
    assert {1, 2} <= {each.attempts for each in read_trajectories(run_dir)}
    assert not any(each.replay.get("restarts") for each in read_trajectories(run_dir))


class Killed(BaseException):
    """Ends the head as a kill would."""


M = TypeVar("M", Seeded, TokenModel)


def holding_one(model: M) -> M:
    """Let one trajectory have a first turn and never a second one, so that it cannot end before the
    head does.
    """
    complete, held = model.complete, list[object]()

    async def hold(messages: Sequence[Mapping[str, Any]], *others: Any) -> Completion:
        if any(message["role"] == "assistant" for message in messages):
            held.append(messages[0])
            if messages[0] == held[0]:
                await asyncio.Event().wait()
        return await complete(messages, *others)

    model.complete = hold  # type: ignore[assignment, method-assign]
    return model


def test_a_head_that_is_killed_resumes_with_the_journals(alone: Path, tmp_path: Path) -> None:
    run_dir, ended = tmp_path / "run", set[str]()

    def die(trajectory: Trajectory) -> None:
        ended.add(trajectory.item_id)
        if len(ended) >= 4 and {item for item, _ in journaled(run_dir)} - ended:
            raise Killed  # while another trajectory has turns

    with pytest.raises(Killed):
        on_nodes(holding_one(Seeded(run_dir, wait_s=0.02)), run_dir, keep=die)
    assert journaled(run_dir)
    model = Seeded(run_dir)
    summary = on_nodes(model, run_dir)
    assert (model.repeated, summary.resumed >= 4, summary.scored) == ([], True, 12)
    assert len(model.asked) < 8 * (COMMANDS + 1)
    assert_same(run_dir, alone)


def test_a_node_that_is_told_to_end_keeps_its_trajectories_or_loses_them_to_others(
    tmp_path: Path,
) -> None:
    """What fails on a node that ends is no failure of the trajectory."""
    run_dir = tmp_path / "run"

    async def leave() -> None:
        while not (clusters and clusters[0].nodes()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        clusters[0].nodes()[0].leave("preempted")

    clusters: list[Cluster] = []
    model = Seeded(run_dir, wait_s=0.03)

    async def run() -> RolloutSummary:
        clusters.append(Cluster(ClusterConfig(max_nodes=2), run_dir))
        asked, _ = await asyncio.gather(
            run_rollouts_on(
                clusters[0], attrs.evolve(OPTIONS, attempts=1), run_dir=run_dir, model=model
            ),
            leave(),
        )
        return asked

    summary = asyncio.run(asyncio.wait_for(run(), 60))
    assert (summary.scored, model.repeated) == (12, [])
    assert len(model.asked) == 12 * (COMMANDS + 1)
    assert len(clusters[0].head.nodes) > 2


def test_what_no_node_can_do_ends_the_run_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = attrs.evolve(OPTIONS, environment_options={"count": "x"})
    with pytest.raises(SpecError, match="a whole number"):
        on_nodes(Seeded(), tmp_path / "one", options)

    async def missing(*_: object) -> None:
        raise SpecError("environment", "x.py:World", "file 'x.py' does not exist")

    with monkeypatch.context() as change:
        change.setattr("hyperruntime.cluster.rollouts.episode_service.complete_parts", missing)
        with pytest.raises(
            ClusterError, match=r"node node-\d cannot open the run: .*does not exist; nodes need"
        ):
            on_nodes(Seeded(), tmp_path / "three")

    async def broken(context: NodeContext) -> None:
        raise EngineUnavailableError("podman", "no user namespaces", "ask the administrator")

    monkeypatch.setattr(NodeContext, "runtime", broken)
    with pytest.raises(ClusterError, match="no user namespaces"):
        on_nodes(Seeded(), tmp_path / "two")
    assert read_trajectories(tmp_path / "two") == []


def test_a_trajectory_that_was_lost_on_ten_nodes_failed_and_many_in_a_row_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def lose(self: NodeEpisodes, node: Node, job: Job) -> Trajectory:
        tried.append(job.id)
        raise NodeLostError("the test says so")

    monkeypatch.setattr(NodeEpisodes, "_run_on", lose)
    with pytest.raises(
        RunError, match=r"failed 4 times in a row .*lost on 10 nodes; the last time"
    ):
        on_nodes(Seeded(), tmp_path, attrs.evolve(OPTIONS, parallel=1, attempts=2, give_up_after=4))
    found = read_trajectories(tmp_path)
    assert [each.status for each in found] == ["infrastructure"] * 2
    assert Counter(tried) == {each.id: 2 * MOST_LOSSES for each in found}


def test_a_node_gets_no_turn_of_a_trajectory_of_another_node(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request comes from the other node first, which makes other trajectories."""
    refused: list[Call] = []

    def handler(model: Model, turns: Callable[[str], PaidTurns | None]) -> Handler:
        ask = model_handler(model, turns)

        async def answer(call: Call) -> Answer:
            other = {"node-1": "node-2", "node-2": "node-1"}[call.caller]
            with pytest.raises(HyperRuntimeError, match="is not made on this node"):
                await ask(attrs.evolve(call, caller=other))
            refused.append(call)
            return await ask(call)

        return answer

    monkeypatch.setattr("hyperruntime.cluster.rollouts.node_episodes.model_handler", handler)
    model = Seeded(wait_s=0.01)
    on_nodes(model, tmp_path / "run")
    assert {call.caller for call in refused} == {"node-1", "node-2"}
    assert len(refused) == len(model.asked) == 12 * (COMMANDS + 1)
    assert_same(tmp_path / "run", alone)


def test_an_error_of_the_relayed_model_keeps_its_kind(tmp_path: Path) -> None:
    class Small(Seeded):
        async def complete(self, *args: Any) -> Completion:
            if len(self.asked) > 2 * 12:
                raise ContextLengthError("too long")
            return await super().complete(*args)

    on_nodes(Small(), tmp_path / "run")
    assert {"context_limit"} <= {each.stop_reason for each in read_trajectories(tmp_path / "run")}

    class Down(Seeded):
        async def complete(self, *args: Any) -> Completion:
            raise ModelError("the server is down")

    on_nodes(Down(), tmp_path / "down", attrs.evolve(OPTIONS, attempts=1, give_up_after=100))
    (error,) = {json.dumps(each.error) for each in read_trajectories(tmp_path / "down")}
    assert json.loads(error) == {
        "kind": "ModelError",
        "message": "the server is down",
        "phase": "agent",
    }


def test_a_resumed_head_continues_the_tokens_of_turns_that_nodes_play_back(tmp_path: Path) -> None:
    def speak(prompt: str) -> str:
        done = prompt.count(" words, ")
        odd = f'<tool_call>  {{"arguments":{{"word":"w{done}"}},   "name":"add"}} </tool_call>'
        return odd if done < COMMANDS else "done"

    ended: set[str] = set()

    def die(trajectory: Trajectory) -> None:
        ended.add(trajectory.item_id)
        if {item for item, _ in journaled(tmp_path)} - ended:
            raise Killed  # while another trajectory has turns

    with token_server(speak) as server:
        model = ModelOptions(name="m", base_url=server.url, wire="sglang", tokenizer="-")
        with pytest.raises(Killed):
            on_nodes(holding_one(TokenModel(model, server.tokenizer)), tmp_path, keep=die)
        recorded = {each.item_id for each in read_trajectories(tmp_path)}
        turns = {(item, turn) for item, turn in journaled(tmp_path) if item not in recorded}
        kept, paid = len(turns) + len(recorded) * (COMMANDS + 1), len(server.turns)
        assert turns
        assert on_nodes(TokenModel(model, server.tokenizer), tmp_path).scored == 12
        under_way = OPTIONS.parallel  # calls that the killed head had not been answered
        assert len(server.turns) - paid <= 12 * (COMMANDS + 1) - kept + under_way
    found = read_trajectories(tmp_path)
    assert max(each.attempts for each in found) == 2
    assert {len(each.segments) for each in found} == {1}


@pytest.mark.parametrize("reached", [True, False])
def test_nodes_ask_a_server_that_they_reach_and_else_the_head(
    reached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = "hyperruntime.cluster.rollouts"
    relayed: list[Model] = []

    def handler(model: Model, turns: Callable[[str], PaidTurns | None]) -> Handler:
        ask = model_handler(model, turns)

        async def answer(call: Call) -> Answer:
            relayed.append(model)
            return await ask(call)

        return answer

    async def unreached(options: ModelOptions) -> None:
        raise ModelError("no model server answers")

    def script(request: Mapping[str, Any]) -> ModelReply:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        return calls(add={"word": f"w{turn}"}) if turn < COMMANDS else says("done")

    monkeypatch.setattr(f"{here}.node_episodes.is_reachable_from_nodes", lambda options: True)
    monkeypatch.setattr(f"{here}.node_episodes.model_handler", handler)
    if not reached:
        monkeypatch.setattr(f"{here}.episode_service.check_server", unreached)
    with scripted_model(script) as server:
        options = attrs.evolve(OPTIONS, model=ModelOptions(name="m", base_url=server.url))
        assert on_nodes(None, tmp_path, options).scored == 12
    assert len(server.requests) == 12 * (COMMANDS + 1)
    assert len(relayed) == (0 if reached else len(server.requests))


@pytest.mark.parametrize(
    ("url", "key", "reachable"),
    [
        ("http://127.0.0.1:8000/v1", None, False),
        ("http://[::1]:8000/v1", None, False),
        ("http://localhost/v1", None, False),
        ("http://gpu7:8000/v1", None, True),
        ("https://models.example.org/v1", "KEY", False),
    ],
)
def test_nodes_ask_a_server_themselves_only_without_a_key(
    url: str, key: str | None, reachable: bool
) -> None:
    assert is_reachable_from_nodes(ModelOptions(name="m", base_url=url, key_env=key)) is reachable
