"""Slots on nodes that are processes of this machine, on a real engine: commands, files, and a node
that is killed.
"""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path

import psutil
import pytest

import hyperruntime as hr
from hyperruntime.errors import SandboxLostError
from hyperruntime.host.process import wait_until
from tests.doubles.relay import Relay

pytestmark = pytest.mark.engine


def test_slots_of_two_nodes_are_used_and_those_of_a_killed_node_are_lost_alone(
    runtime: hr.Runtime, runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    config = hr.PoolConfig(
        spec=hr.ContainerSpec(image=base_image), slots_per_container=1, max_containers=2
    )
    nodes = hr.ClusterConfig(
        min_nodes=2, max_nodes=2, runtime=runtime_name, patience_s=5.0, heartbeat_s=1.0
    )
    (tmp_path / "tree").mkdir()
    (tmp_path / "back").mkdir()
    (tmp_path / "tree" / "data").write_bytes(b"\0data" * 100_000)

    pids: list[int] = []

    async def test() -> None:
        async with (
            hr.Cluster(nodes, tmp_path / "jobs") as cluster,
            hr.ClusterPool(cluster, config) as pool,
        ):
            slots = await asyncio.gather(*(pool.acquire(f"task{number}") for number in range(4)))
            places = {slot.slot_id.partition("/")[0] for slot in slots}
            assert len(places) == 2
            pids.extend(node.facts.pid for node in cluster.nodes())
            for slot in slots:
                lease = pool.lease_of(slot)
                await lease.put(tmp_path / "tree", "tree")
                result = await lease.exec(
                    ["sh", "-c", "cat; wc -c <tree/data"], input=b"in ", timeout_s=60
                )
                assert (result.exit_code, result.stdout) == (0, b"in 500000\n")
                assert (await lease.tool("bash", {"command": "echo $((6 * 7))"})).stdout == "42\n"
                await lease.get("tree", tmp_path / "back" / slot.task_id)
                assert (
                    tmp_path / "back" / slot.task_id / "data"
                ).read_bytes() == b"\0data" * 100_000
            await use_groups(pool.lease_of(slots[1]))
            doomed = slots[0]
            victim = next(
                node for node in cluster.nodes() if node.name == doomed.slot_id.partition("/")[0]
            )
            running = asyncio.ensure_future(pool.lease_of(doomed).exec(["sleep", "100"]))
            await asyncio.sleep(0.5)
            psutil.Process(victim.facts.pid).kill()
            with pytest.raises(SandboxLostError, match=f"node {victim.name}"):
                await running
            others = [slot for slot in slots if slot.slot_id.partition("/")[0] != victim.name]
            assert len(others) == 2
            for slot in others:
                assert (await pool.lease_of(slot).exec(["echo", "on"])).stdout == b"on\n"
            await pool.release(others[0])
            async with pool.lease(timeout_s=60) as lease:
                assert (await lease.exec(["true"])).exit_code == 0

    asyncio.run(asyncio.wait_for(test(), 240))
    assert wait_until(
        lambda: not [one for one in runtime.containers() if one.owner.pid in pids], 20, 0.2
    )


@pytest.mark.slow
async def test_a_node_is_not_given_back_as_idle_while_a_pool_starts_on_it_and_the_cluster_forgets_the_pool(
    runtime_name: str, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.cluster.cluster._LOOK_S", 0.01)
    config = hr.PoolConfig(
        spec=hr.ContainerSpec(image=base_image), slots_per_container=1, min_containers=3
    )

    nodes = hr.ClusterConfig(max_nodes=1, runtime=runtime_name, idle_s=0.2)
    async with hr.Cluster(nodes, tmp_path / "jobs") as cluster:
        known = set(cluster.head._handlers)
        async with hr.ClusterPool(cluster, config) as pool, pool.lease(timeout_s=60) as lease:
            assert lease.slot.slot_id.startswith("node-1/"), "the first node"
            assert (await lease.exec(["echo", "on"])).stdout == b"on\n"
        assert set(cluster.head._handlers) == known
        assert cluster._on_node == []


async def use_groups(lease: hr.Sandbox) -> None:
    """Interrupt and kill commands by their groups."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear(*_: object) -> None:
        loop.call_soon_threadsafe(begun.set)

    for group, end, code in (
        ("build", partial(lease.signal_group, "build", signal.SIGINT), 130),
        ("test", partial(lease.end_group, "test"), 137),
    ):
        begun.clear()
        running = asyncio.ensure_future(
            lease.exec(["sh", "-c", "echo up; exec sleep 300"], group=group, on_output=hear)
        )
        await begun.wait()
        assert await end()
        assert (await running).exit_code == code
    assert not await lease.signal_group("build", signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "silent"])
async def test_a_partition_of_10_s_costs_nothing_and_one_of_60_s_the_node_and_its_containers(
    runtime: hr.Runtime, runtime_name: str, base_image: str, tmp_path: Path, how: str
) -> None:
    """Simulated by relays that drop and refuse connections, or go silent; the nodes are processes
    of this machine.
    """
    config = hr.PoolConfig(
        spec=hr.ContainerSpec(image=base_image), slots_per_container=1, max_containers=1
    )
    short, long = Relay(), Relay()

    async def cut(relay: Relay, seconds: float) -> None:
        relay.fail(how)
        await asyncio.sleep(seconds)
        relay.recover()

    async with hr.Cluster(
        hr.ClusterConfig(max_nodes=3, runtime=runtime_name), tmp_path / "jobs"
    ) as cluster:
        port, nodes = int(cluster.head._addresses[0].rpartition(":")[2]), []
        for relay in (short, long):
            cluster.head._addresses = (await relay.start(port),)
            nodes.append(await cluster.add_node())
        async with hr.ClusterPool(cluster, config) as pool:
            slots = {(slot := await pool.acquire()).slot_id.partition("/")[0]: slot for _ in nodes}
            kept, lost = (
                asyncio.ensure_future(
                    pool.lease_of(slots[node.name]).exec(["sh", "-c", "sleep 20; echo on"])
                )
                for node in nodes
            )
            await asyncio.sleep(1)
            await asyncio.gather(cut(short, 10), cut(long, 60))
            assert (await kept).stdout == b"on\n"
            with pytest.raises(
                SandboxLostError, match=f"node {nodes[1].name} .* no connection for 30 s"
            ):
                await lost
            pid = nodes[1].facts.pid
            gone = partial(_has_none, runtime, pid)
            assert await asyncio.to_thread(wait_until, gone, 30, 0.2), (
                "the lost node's containers go on"
            )
            assert (nodes[0].lost, nodes[0].leaving) == (None, "")
            assert pool.status().lost == 1


def _has_none(runtime: hr.Runtime, pid: int) -> bool:
    return not [one for one in runtime.containers() if one.owner.pid == pid]
