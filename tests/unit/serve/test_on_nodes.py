"""A node of a cluster has the same handlers: the head starts containers and runs commands on it."""

from __future__ import annotations

import asyncio

import attrs
import pytest

from hyperruntime.cluster.head import Head
from hyperruntime.cluster.node_server import NodeServer
from hyperruntime.cluster.node_services import SERVICES, NodeContext, NodeSettings
from hyperruntime.errors import SpecError
from hyperruntime.runtime import Runtime
from hyperruntime.serve.container_service import OF_A_HEAD, ContainerService
from hyperruntime.serve.service_errors import ResourceNotFoundError
from hyperruntime.spec import Limits
from hyperruntime.testing import FakeDriver
from hyperruntime.testing.driver import IMAGE
from hyperruntime.transfer.file_errors import PathNotFoundError
from hyperruntime.wire.peer import Answer


class FakeContext(NodeContext):
    """A node with the fake driver."""

    async def runtime(self) -> Runtime:
        if self._runtime is None:
            self._runtime = Runtime(FakeDriver())
        return self._runtime


def test_the_head_uses_containers_of_a_node_by_the_handlers_of_the_http_service() -> None:
    async def use() -> None:
        context = FakeContext(NodeSettings())
        assert f"{ContainerService.__module__}:{ContainerService.__name__}" in SERVICES
        service = ContainerService(context, attrs.evolve(OF_A_HEAD, limits=Limits(pids=None)))
        head = Head()
        await head.start("127.0.0.1")
        served = asyncio.ensure_future(NodeServer(head.invite("n1"), service.handlers).serve())
        node = head.nodes["n1"]
        await node.joined.wait()
        try:
            made = await node.peer.call("container.start", {"image": IMAGE})
            one = {"container": made.value["name"]}
            events: list[Answer] = []
            args = {**one, "args": ["sh", "-c", "cat; echo x >&2; exit 3"], "stream": True}
            done = await node.peer.call("exec.run", args, b"\xff\x00", events.append)
            assert done.value["exit_code"] == 3
            found = [(event.value["stream"], event.body) for event in events]
            assert sorted(found) == [("stderr", b"x\n"), ("stdout", b"\xff\x00")]
            await node.peer.call("file.write", {**one, "path": "/tmp/x"}, b"\xff")
            assert (await node.peer.call("file.read", {**one, "path": "/tmp/x"})).body == b"\xff"
            with pytest.raises(SpecError, match="path='x' is not allowed"):
                await node.peer.call("file.read", {**one, "path": "x"})
            with pytest.raises(PathNotFoundError, match="'/none' in the container"):
                await node.peer.call("file.read", {**one, "path": "/none"})
            await node.peer.call("container.end", one)
            with pytest.raises(ResourceNotFoundError):
                await node.peer.call("container.show", one)
        finally:
            await service.close()
            await context.close()
            await head.stop()
            served.cancel()

    asyncio.run(asyncio.wait_for(use(), 60))
