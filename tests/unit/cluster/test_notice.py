"""A node that the batch system has told to end, by SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from hyperruntime.cluster.head import Head
from hyperruntime.cluster.node_server import run_node
from hyperruntime.cluster.node_services import NodeSettings
from hyperruntime.errors import NodeLostError

_DAY_S = 24 * 3600.0


async def test_a_node_goes_on_while_its_head_is_there_and_ends_soon_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hyperruntime.cluster.node_server._ALONE_S", 0.2)

    head = Head(patience_s=_DAY_S)
    await head.start("127.0.0.1")
    served = asyncio.ensure_future(run_node(head.invite("n1"), NodeSettings(), lambda _: ()))
    node, told = head.nodes["n1"], asyncio.Event()
    node.on_leaving(told.set)
    await node.joined.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await told.wait()
    assert not served.done()
    await head.stop()
    with pytest.raises(NodeLostError, match="the batch system ends the job, and the head is away"):
        await asyncio.wait_for(served, 120)
