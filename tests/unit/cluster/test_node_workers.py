"""Work on nodes that are lost, full or unfit, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import pytest

from hyperruntime.cluster.head import Node
from hyperruntime.cluster.node_workers import Member, NodeWorkers, roomiest
from hyperruntime.errors import ClusterError, EngineUnavailableError, NodeLostError
from hyperruntime.runs.retry import MOST_FAULTS, MOST_LOSSES, LostTooOftenError

T = TypeVar("T")


class FakeNodes:
    """A cluster whose nodes join at once, as many as are wanted."""

    def __init__(self) -> None:
        self.error: ClusterError | None = None
        self.made: list[Node] = []
        self.wanted: list[int] = []
        self.most = 99
        self.join: Callable[[Node], None] = lambda _: None

    def nodes(self) -> list[Node]:
        return [node for node in self.made if node.lost is None and not node.leaving]

    def want(self, count: int) -> None:
        self.wanted.append(count)
        while len(self.nodes()) < min(count, self.most):
            self.made.append(Node(f"node-{len(self.made)}", "", {}))
            self.join(self.made[-1])

    def on_node(self, function: Callable[[Node], None]) -> None:
        self.join = function


def on(
    test: Callable[[NodeWorkers], Awaitable[T]], nodes: FakeNodes | None = None, parallel: int = 4
) -> T:
    there = nodes or FakeNodes()

    async def run() -> T:
        workers = NodeWorkers(cast(Any, there), parallel, 2)
        there.on_node(lambda node: workers.add(node, workers.each))
        return await asyncio.wait_for(test(workers), 20)

    return asyncio.run(run())


async def losing(node: Node, lost: int) -> None:
    node.lose("the test says so")
    assert node.lost is not None
    raise node.lost


def test_work_goes_to_the_next_node_with_the_number_of_its_losses() -> None:
    seen: list[tuple[str, int]] = []

    async def work(node: Node, lost: int) -> str:
        seen.append((node.name, lost))
        if lost < 2:
            await losing(node, lost)
        return "done"

    assert on(lambda workers: workers.run(work, "it")) == "done"
    assert seen == [("node-0", 0), ("node-1", 1), ("node-2", 2)]


def test_work_that_is_lost_each_time_is_given_up() -> None:
    nodes = FakeNodes()
    with pytest.raises(LostTooOftenError):
        on(lambda workers: workers.run(losing, "it"), nodes)
    assert len(nodes.made) == MOST_LOSSES
    assert not any(node.leaving for node in nodes.made)
    assert [node.uses for node in nodes.made] == [0] * MOST_LOSSES


def test_a_node_at_fault_gets_no_more_work_and_three_end_the_run() -> None:
    nodes = FakeNodes()

    async def work(node: Node, lost: int) -> None:
        raise EngineUnavailableError("podman", f"{node.name} has none")

    with pytest.raises(EngineUnavailableError, match="node-2 has none"):
        on(lambda workers: workers.run(work, "it", faults=(EngineUnavailableError,)), nodes)
    assert [bool(node.leaving) for node in nodes.made] == [True] * MOST_FAULTS


def test_other_errors_of_the_work_are_its_own_and_do_not_move_it() -> None:
    nodes = FakeNodes()

    async def work(node: Node, lost: int) -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        on(lambda workers: workers.run(work, "it"), nodes)
    assert len(nodes.made) == 1


def test_work_waits_for_room_unless_it_needs_none_and_a_check_ends_the_wait() -> None:
    nodes = FakeNodes()
    nodes.most = 1
    ends = False

    def check() -> None:
        if ends:
            raise KeyError("interrupted")

    async def test(workers: NodeWorkers) -> None:
        nonlocal ends
        hold = asyncio.Event()

        async def holding(node: Node, lost: int) -> None:
            await hold.wait()

        async def quick(node: Node, lost: int) -> str:
            return node.name

        held = [asyncio.ensure_future(workers.run(holding, "it")) for _ in range(2)]
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(workers.run(quick, "it"))
        stopped = asyncio.ensure_future(workers.run(quick, "it", check=check))
        await asyncio.sleep(0)
        assert await workers.run(quick, "it", needs_room=False) == "node-0"
        assert not any(task.done() for task in (waiting, stopped))
        ends = True
        with pytest.raises(KeyError):
            await stopped
        hold.set()
        await asyncio.gather(*held)
        assert await waiting == "node-0"
        assert max(nodes.wanted) == 3  # for five pieces of work, two on each

    on(test, nodes)


def test_a_cluster_that_has_no_node_and_gets_none_ends_what_waits() -> None:
    nodes = FakeNodes()
    nodes.most, nodes.error = 0, ClusterError("the partition is closed")

    async def work(node: Node, lost: int) -> None:
        raise AssertionError

    with pytest.raises(ClusterError, match="the partition is closed"):
        on(lambda workers: workers.run(work, "it"), nodes)


def test_work_goes_where_its_caches_are_unless_that_node_is_much_fuller_than_another() -> None:
    a, b = (Member(Node(name, "", {}), 4) for name in "ab")
    a.remember("django")
    chosen = []
    for _ in range(3):
        a.take()
        chosen.append(roomiest([a, b], "django", least_share=0.5))
    assert chosen == [a, a, b]
    assert roomiest([a, b], "django") is a
    assert roomiest([a, b], "sympy") is b
    a.slots = b.slots = 0
    assert roomiest([a, b], "django") is None
    assert roomiest([], "django") is None


def test_nodes_that_are_lost_or_leave_get_no_work() -> None:
    a, b = (Member(Node(name, "", {}), 4) for name in "ab")
    a.node.leave("its time is over")
    b.node.lose("killed")
    assert roomiest([a, b], "") is None
    assert isinstance(b.node.lost, NodeLostError)
