"""A pool over nodes that are in this process, on the fake driver."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import hyperruntime as hr
from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.head import Head, Node
from hyperruntime.cluster.node_server import NodeServer
from hyperruntime.cluster.node_services import NodeContext, NodeSettings
from hyperruntime.cluster.slots.cluster_pool import ClusterPool
from hyperruntime.cluster.slots.pool_service import PoolService
from hyperruntime.runtime import Runtime
from hyperruntime.testing import FakeDriver
from hyperruntime.testing.driver import IMAGE

CONFIG = hr.PoolConfig(
    spec=hr.ContainerSpec(image=IMAGE, limits=hr.Limits(pids=None)),
    slots_per_container=1,
    min_containers=0,
    max_containers=2,
    spare_containers=0,
    acquire_timeout_s=20.0,
)


class FakeContext(NodeContext):
    """A node with the fake driver."""

    async def runtime(self) -> Runtime:
        if self._runtime is None:
            self._runtime = Runtime(FakeDriver())
        return self._runtime


class FakeCluster:
    """A cluster whose nodes are in this process, and join at once when they are wanted."""

    def __init__(self, most: int) -> None:
        self.head, self.most, self.wanted, self.error = Head(), most, 0, None
        self.numbers = itertools.count(1)
        self.serving: dict[str, tuple[asyncio.Task[None], FakeContext, PoolService]] = {}
        self.functions: list[Callable[[Node], None]] = []
        self.joining: set[asyncio.Task[None]] = set()

    def nodes(self) -> list[Node]:
        return [node for node in self.head.nodes.values() if node.is_ready and node.lost is None]

    def want(self, count: int) -> None:
        while self.wanted < min(count, self.most):
            self.wanted += 1
            self.joining.add(asyncio.ensure_future(self.join(f"n{next(self.numbers)}")))

    async def join(self, name: str) -> None:
        context = FakeContext(NodeSettings())
        service = PoolService(context)
        server = NodeServer(self.head.invite(name), service.handlers)
        context.head = server.peer
        self.serving[name] = asyncio.ensure_future(server.serve()), context, service
        node = self.head.nodes[name]
        await node.joined.wait()
        node.is_ready = True  # at once with the calls, as in a cluster
        for function in self.functions:
            function(node)

    async def give_image(self, node: Node, image: str) -> None:
        """Do nothing: the fake driver has it."""

    async def wait_for_node(self) -> Node:
        while not self.nodes():
            await asyncio.sleep(0.01)
        return self.nodes()[0]

    def on_node(self, function: Callable[[Node], None]) -> None:
        self.functions.append(function)
        for node in self.nodes():
            function(node)

    def off_node(self, function: Callable[[Node], None]) -> None:
        self.functions.remove(function)

    async def kill(self, name: str) -> None:
        task, context, service = self.serving.pop(name)
        task.cancel()
        self.head.nodes[name].lose("killed by the test")
        self.wanted -= 1
        await service.close()
        await context.close()

    async def close(self) -> None:
        await self.head.stop()
        for name in list(self.serving):
            await self.kill(name)


@asynccontextmanager
async def pool(
    nodes: int = 2, config: hr.PoolConfig = CONFIG, *, most: int | None = None
) -> AsyncIterator[tuple[ClusterPool, FakeCluster]]:
    cluster = FakeCluster(most or nodes)
    await cluster.head.start("127.0.0.1")
    cluster.want(nodes)
    await asyncio.gather(*cluster.joining)
    made = ClusterPool(cast("Cluster", cluster), config)
    await made.start()
    while len(made._members) < nodes:
        await asyncio.sleep(0.01)
    try:
        yield made, cluster
    finally:
        await made.stop()
        await cluster.close()
