"""Nodes that are tasks of a Ray cluster, which has four nodes on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster

import hyperruntime as hr
from hyperruntime.cluster.head import Node
from hyperruntime.host.process import wait_until

NODES = 4
SOON_S = 120.0  # not a promise
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def add_node(cluster: RayCluster) -> object:
    return cluster.add_node(
        num_cpus=1,
        num_gpus=0,
        object_store_memory=80 << 20,
        include_dashboard=False,
    )


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    """A Ray cluster, each of whose nodes has room for one task."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", f"{SOON_S:g}")
    cluster = RayCluster()
    for _ in range(NODES):
        add_node(cluster)
    cluster.wait_for_nodes()
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


async def ready(cluster: hr.Cluster, *, without: set[str]) -> list[Node]:
    """Wait until all nodes are there; none of them has a name of ``without``."""
    async with asyncio.timeout(SOON_S):
        while len(found := cluster.nodes()) < NODES or without & {node.name for node in found}:
            await asyncio.sleep(0.1)
    return found


def naming(word: str) -> list[list[str]]:
    """Return the command lines that name a word."""
    found = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [line for line in found if any(word in part for part in line)]


async def test_nodes_work_are_replaced_when_they_are_killed_and_leave_nothing(
    tmp_path: Path,
    ray_cluster: RayCluster,
    runtime: hr.Runtime,
    runtime_name: str,
    base_image: str,
) -> None:
    config = hr.ClusterConfig(
        provider="ray",
        min_nodes=NODES,
        max_nodes=NODES,
        runtime=runtime_name,
        address="127.0.0.1",
        heartbeat_s=1,
        patience_s=5,
    )
    slots = hr.PoolConfig(
        spec=hr.ContainerSpec(image=base_image), max_containers=1, slots_per_container=1
    )
    owners = set[int]()
    async with hr.Cluster(config, tmp_path) as cluster:
        first = await ready(cluster, without=set())
        psutil.Process(first[0].facts.pid).kill()
        second = await ready(cluster, without={first[0].name})
        # a whole node of Ray, and so the node server of its task; another one comes
        ray_cluster.remove_node(ray_cluster.list_all_nodes()[-1], allow_graceful=False)
        add_node(ray_cluster)
        lost = await asyncio.to_thread(
            lambda: wait_until(lambda: any(n.lost for n in second), SOON_S)
        )
        assert lost
        gone = {node.name for node in (*first, *second) if node.lost}
        assert len(gone) == 2
        last = await ready(cluster, without=gone)
        owners |= {node.facts.pid for node in (*first, *second, *last)}
        async with hr.ClusterPool(cluster, slots) as pool:
            held = [await pool.acquire() for _ in range(NODES)]
            assert {slot.slot_id.partition("/")[0] for slot in held} == {n.name for n in last}
            for slot in held:
                done = await pool.lease_of(slot).exec(["echo", "from a task"])
                assert done.stdout == b"from a task\n"
    assert wait_until(lambda: not naming(str(tmp_path)), SOON_S, 0.2), naming(str(tmp_path))
    assert not [one for one in runtime.containers() if one.owner.pid in owners]
    assert wait_until(lambda: ray.available_resources().get("CPU") == NODES, SOON_S, 0.2)
    assert {path.suffix for path in tmp_path.iterdir()} == {".log"}  # of the nodes
