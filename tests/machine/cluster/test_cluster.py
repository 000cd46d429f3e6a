"""A cluster of processes of this machine: nodes come when they are wanted, go when idle, and are
asked for again.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.head import Head
from hyperruntime.cluster.open_clusters import ClusterFile, open_clusters
from hyperruntime.errors import ClusterError, NodeLostError
from hyperruntime.storage.atomic import write_atomic
from tests.processes import end


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


async def test_the_files_of_jobs_that_nobody_asked_for_go_with_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async with Cluster(ClusterConfig(max_nodes=1)):
        assert [path.name[:15] for path in tmp_path.iterdir()] == [".hyperrun-jobs-"]
    assert list(tmp_path.iterdir()) == []
    taken = ClusterConfig(max_nodes=1, address="192.0.2.1")  # of no machine
    with pytest.raises(ClusterError):
        await Cluster(taken).__aenter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
async def test_nodes_come_when_wanted_go_when_idle_and_are_replaced_when_killed(
    tmp_path: Path,
) -> None:
    config = ClusterConfig(max_nodes=2, idle_s=3.0)
    async with Cluster(config, tmp_path) as cluster:
        joined: list[str] = []
        cluster.on_node(lambda node: joined.append(node.name))
        assert cluster.nodes() == []
        cluster.want(5)
        first = await cluster.wait_for_node()
        with first.in_use():
            await until(lambda: len(cluster.nodes()) == 2)
            second = next(node for node in cluster.nodes() if node is not first)
            await until(lambda: second.lost is not None)  # it was idle
            assert (second.leaving, cluster.nodes()) == ("idle", [first])
            victim = psutil.Process(first.facts.pid)
            victim.kill()
            await until(lambda: first.lost is not None)
        with pytest.raises(NodeLostError):
            await first.peer.call("time")
        third = await cluster.wait_for_node()
        assert third is not first
        assert sorted(joined) == ["node-1", "node-2", "node-3"]
    pids = [node.facts.pid for node in cluster.head.nodes.values()]
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


async def test_a_node_that_is_told_to_end_takes_no_new_work_and_finishes_what_it_has(
    tmp_path: Path,
) -> None:
    async with Cluster(ClusterConfig(max_nodes=2), tmp_path) as cluster:
        cluster.want(1)
        node = await cluster.wait_for_node()
        with node.in_use():
            server = psutil.Process(node.facts.pid)
            end((server,), signal.SIGTERM)  # as before a preemption
            await until(lambda: node.leaving)
            assert (await node.peer.call("containers")).value
            assert node.lost is None
            await until(cluster.nodes)  # another one


@pytest.mark.slow
async def test_a_node_takes_no_new_work_before_the_end_of_its_walltime_and_the_next_one_has_a_new_job(
    tmp_path: Path,
) -> None:
    """The walltime begins with the job, which prepares itself for a second before the node server
    runs.
    """

    config = ClusterConfig(walltime="00:01:00", drain_s=35, setup=("sleep 1",))
    async with Cluster(config, tmp_path) as cluster:
        cluster.want(1)
        await until(lambda: cluster.head.nodes)
        node = cluster.head.nodes["node-1"]
        with node.in_use():
            await until(lambda: node.leaving)
            assert node.leaving == "its walltime is nearly over"
            assert node.facts.age_s >= 1
            assert asyncio.get_running_loop().time() - node.job_began >= 60 - 35
            assert (await node.peer.call("containers")).value, "it finishes what it has"
        second = cluster.head.nodes["node-2"]
        await until(second.joined.is_set)
        assert second.job_began > node.job_began + 1, "it is in the job whose time is over"


@pytest.mark.slow
async def test_a_first_job_that_fails_does_not_end_the_cluster(tmp_path: Path) -> None:
    """As one that the batch system ends, or cannot start, before it connects."""

    config = ClusterConfig(max_nodes=1, setup=(f"mkdir {tmp_path / 'first'} && exit 3",))
    async with Cluster(config, tmp_path / "jobs") as cluster:
        cluster.want(1)
        await cluster.wait_for_node()
        assert cluster.error is None


@pytest.mark.slow
async def test_nodes_come_though_jobs_begin_in_another_directory_than_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PBS starts jobs in the home directory."""
    monkeypatch.chdir(tmp_path)

    async with Cluster(ClusterConfig(max_nodes=1, setup=("cd /",)), Path("jobs")) as cluster:
        cluster.want(1)
        node = await cluster.wait_for_node()
        assert (tmp_path / "jobs" / f"{node.name}.log").exists()


@pytest.mark.slow
async def test_jobs_that_fail_one_after_another_cost_no_node_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those beyond the limit of an account. After a pause they are asked for again."""
    monkeypatch.setattr("hyperruntime.cluster.cluster._PAUSE_S", 1.0)
    works, tried, go = tmp_path / "works", tmp_path / "tried", tmp_path / "go"

    def tries() -> int:
        return len(tried.read_text().splitlines()) if tried.exists() else 0

    setup = f"mkdir {works} || test -e {go} || {{ echo >>{tried}; exit 3; }}"
    async with Cluster(ClusterConfig(max_nodes=3, setup=(setup,)), tmp_path / "jobs") as cluster:
        cluster.want(1)
        first = await cluster.wait_for_node()
        cluster.want(3)
        await until(lambda: tries() >= 7)
        assert (first.lost, first.leaving, cluster.error) == (None, "", None)
        go.touch()
        await until(lambda: len(cluster.nodes()) == 3)
        assert first in cluster.nodes()


@pytest.mark.slow
async def test_nodes_are_not_given_back_as_idle_while_there_are_fewer_than_the_least(
    tmp_path: Path,
) -> None:
    third = f"mkdir {tmp_path / 'a'} || mkdir {tmp_path / 'b'} || sleep 60"
    config = ClusterConfig(min_nodes=3, max_nodes=3, idle_s=0.5, setup=(third,))
    async with Cluster(config, tmp_path / "jobs") as cluster:
        await until(lambda: len(cluster.nodes()) == 2)
        await asyncio.sleep(3)
        assert len(cluster.nodes()) == 2


async def test_nodes_that_somebody_starts_by_the_command_join(tmp_path: Path) -> None:
    config = ClusterConfig(
        provider="command", address="127.0.0.1", idle_s=0.1, patience_s=2.0, heartbeat_s=0.5
    )
    async with Cluster(config, tmp_path) as cluster:
        (secret,) = tmp_path.glob(".hyperrun-jobs-*/nodes.json")
        assert secret.stat().st_mode & 0o777 == 0o600
        words = ["bash", str(secret.with_suffix(".sh"))]
        started = [await asyncio.create_subprocess_exec(*words) for _ in range(2)]
        await until(lambda: len(cluster.nodes()) == 2)
        servers = {node.facts.pid for node in cluster.nodes()}
        assert {psutil.Process(pid).ppid() for pid in servers} == {one.pid for one in started}
        assert len({node.name for node in cluster.nodes()}) == 2
        assert set(secret.parent.glob("*.json")) == {secret, secret.with_name("owner.json")}
        one = cluster.nodes()[0]
        psutil.Process(one.facts.pid).kill()
        await until(lambda: len(cluster.nodes()) == 1)
        await asyncio.sleep(1)
        assert len(cluster.nodes()) == 1, "it was given back, though nobody could start another"
    assert sorted([await one.wait() for one in started]) == [0, 128 + signal.SIGKILL]


async def test_nodes_that_never_come_are_an_error_that_says_why(tmp_path: Path) -> None:
    config = ClusterConfig(max_nodes=1, setup=("echo the module is missing >&2; exit 3",))
    async with Cluster(config, tmp_path) as cluster:
        cluster.want(1)
        with pytest.raises(
            ClusterError, match="before they join: exit code 3, 'the module is missing'"
        ):
            await cluster.wait_for_node()


async def test_a_cluster_is_listed_again_when_its_file_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("hyperruntime.cluster.open_clusters.WRITE_S", 0.01)
    (tmp_path / "cache").write_text("no directory")

    file = ClusterFile(Head(), "local", tmp_path)
    writing = asyncio.ensure_future(file.keep_writing())
    await asyncio.sleep(0.2)
    (tmp_path / "cache").unlink()
    await until(open_clusters)
    writing.cancel()
    file.remove()
    assert open_clusters() == []


async def test_a_closed_cluster_is_not_listed_even_if_its_file_was_just_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    def write(path: Path, content: bytes) -> None:
        begun.set()
        go.wait(60)
        write_atomic(path, content)
        done.set()

    monkeypatch.setattr("hyperruntime.cluster.open_clusters.write_atomic", write)

    file = ClusterFile(Head(), "local", tmp_path)
    writing = asyncio.ensure_future(file.keep_writing())
    await until(begun.is_set)
    writing.cancel()
    removing = asyncio.ensure_future(asyncio.to_thread(file.remove))
    await asyncio.sleep(0.1)
    go.set()
    await removing
    await until(done.is_set)
    assert open_clusters() == []
