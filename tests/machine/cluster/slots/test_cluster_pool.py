"""One pool over several nodes: leases, tools, errors, placement, growth and loss. The nodes are in
this process.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.head import Node
from hyperruntime.cluster.slots.cluster_pool import ClusterPool
from hyperruntime.errors import (
    NodeLostError,
    PoolClosedError,
    PoolStartError,
    SandboxLostError,
    SlotTimeoutError,
    SpecError,
    StaleLeaseError,
    TransferError,
    UnsupportedOptionError,
)
from hyperruntime.layers.snapshots.snapshot import new_snapshot
from hyperruntime.runs.retry import MOST_LOSSES, LostTooOftenError
from tests.doubles.node_pool import CONFIG, FakeCluster, pool
from tests.doubles.relay import Relay


def node_of(slot: hr.Slot) -> str:
    return slot.slot_id.partition("/")[0]


async def test_slots_of_all_nodes_are_leased_evenly_used_and_released() -> None:
    async with pool(2) as (made, _):
        slots = [await made.acquire(f"task{number}") for number in range(4)]
        assert Counter(map(node_of, slots)) == {"n1": 2, "n2": 2}
        assert (made.status().leased, made.status().free, made.status().total_slots) == (
            4,
            0,
            4,
        )
        for slot in slots:
            lease = made.lease_of(slot)
            result = await lease.exec(
                ["sh", "-c", "cat; echo err >&2; exit 3"], input=b"\0in\xff", timeout_s=20
            )
            assert (result.exit_code, result.stdout, result.stderr) == (
                3,
                b"\0in\xff",
                b"err\n",
            )
            called = await lease.tool("bash", {"command": "echo $((6 * 7))"})
            assert (called.success, called.stdout, called.slot_id) == (
                True,
                "42\n",
                slot.slot_id,
            )
        batch = await made.execute_batch([(slot, "bash", {"command": "pwd"}) for slot in slots])
        assert [result.stdout.strip() for result in batch] == [slot.workspace for slot in slots]
        with pytest.raises(SlotTimeoutError, match="4 leased on 2 nodes"):
            await made.acquire(timeout_s=0.2)
        with pytest.raises(UnsupportedOptionError, match="base: a snapshot belongs to one machine"):
            await made.acquire(base=new_snapshot("podman", CONFIG.spec.image, ()))
        for slot in slots:
            await made.release(slot)
        with pytest.raises(StaleLeaseError):
            await made.release(slots[0])
        with pytest.raises(StaleLeaseError):
            await made.execute(slots[0], "bash", {"command": "true"})
        async with made.lease() as lease:
            assert (await lease.exec(["true"])).exit_code == 0
        assert made.status().leased == 0
    with pytest.raises(PoolClosedError):
        await made.acquire()


async def test_output_streams_in_order_and_bad_arguments_are_refused() -> None:
    async with pool(1) as (made, _), made.lease() as lease:
        heard: list[tuple[str, bytes]] = []
        script = "echo one; sleep 0.2; echo two >&2"
        await lease.exec(
            ["sh", "-c", script], on_output=lambda stream, chunk: heard.append((stream, chunk))
        )
        assert heard == [("stdout", b"one\n"), ("stderr", b"two\n")]
        with pytest.raises(SpecError, match="timeout_s=-1"):
            await lease.exec(["true"], timeout_s=-1)


async def test_variables_are_checked_as_here_and_a_text_of_a_shell_may_be_large() -> None:
    async with pool(1) as (made, _), made.lease() as lease:
        env = cast("dict[str, str]", {"A": Path("/a b")})
        for refused in (lambda: lease.exec(["true"], env=env), lambda: lease.shell(env=env)):
            with pytest.raises(SpecError, match=r"env\[A\]='\.\.\.' .* text .*, not a PosixPath"):
                await refused()
        async with await lease.shell() as shell:
            text = "word='" + "漢" * 6_000_000 + "'; read line; echo ${#word} $line"
            given = await shell.arun(text, input=b"input\n")
            assert given.stdout in (b"6000000 input\n", b"18000000 input\n")
            assert (await shell.arun("", input=b"unread")).exit_code == 0


async def test_results_of_a_node_whose_job_the_batch_system_ends_are_lost_with_it() -> None:
    """scancel(1) signals all processes of a job; the node server may hear of it a moment after the
    command.
    """

    async with pool(1) as (made, cluster), made.lease() as lease:
        words = ["sh", "-c", "kill -TERM $$"]
        assert (await lease.exec(words)).exit_code == 143
        assert (await lease.exec(["sh", "-c", "exit 3"])).exit_code == 3
        for use in (
            lambda: lease.exec(words),
            lambda: lease.tool("bash", {"command": "sh -c 'kill -TERM $$'"}),
        ):
            (context := cluster.serving["n1"][1]).told_to_end.clear()
            asyncio.get_running_loop().call_later(0.3, context.told_to_end.set)
            with pytest.raises(SandboxLostError, match="the batch system ends the job"):
                await use()
        with pytest.raises(SandboxLostError, match="the batch system ends the job"):
            await lease.exec(["true"])


async def test_files_and_streams_of_any_size_pass_in_pieces_and_errors_of_the_caller_end_the_command(
    tmp_path: Path,
) -> None:
    async with pool(1) as (made, _), made.lease() as lease:
        (tree := tmp_path / "tree").mkdir()
        (tree / "data").write_bytes(data := random.Random(1).randbytes(3 << 20))
        (tree / "link").symlink_to("data")
        await lease.put(tree, "copy")
        await lease.get("copy", tmp_path / "back")
        assert (tmp_path / "back" / "data").read_bytes() == data
        assert os.readlink(tmp_path / "back" / "link") == "data"
        with pytest.raises(TransferError, match="no such file or directory"):
            await lease.get("nothing", tmp_path / "nothing")
        got: list[bytes] = []
        passed = await lease.exec(["cat"], input=data, on_output=lambda _, chunk: got.append(chunk))
        assert (passed.exit_code, b"".join(got)) == (0, data)
        passed = await lease.exec(["cat"], input=io.BytesIO(data[:100]))
        assert passed.stdout == data[:100]

        def refuse(*_: object) -> None:
            raise ZeroDivisionError("of the caller")

        with pytest.raises(ZeroDivisionError, match="of the caller"):
            await lease.exec(["sh", "-c", "echo $$ >pid; echo; exec sleep 60"], on_output=refuse)
        while (await lease.exec(["sh", "-c", "kill -0 $(cat pid)"])).exit_code == 0:
            await asyncio.sleep(0.02)
        with (tmp_path / "large").open("wb") as large:
            large.truncate(1 << 40)
        copying = asyncio.ensure_future(lease.put(tmp_path / "large", "here/large"))
        while (await lease.exec(["test", "-e", "here"])).exit_code:
            await asyncio.sleep(0.02)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        assert (await lease.exec(["ls", "-A", "here"])).stdout == b""
        await lease.end_processes()


async def test_an_acquire_that_is_cancelled_at_any_moment_leases_nothing() -> None:
    async with pool(1) as (made, _):
        for number in range(60):
            acquiring = asyncio.ensure_future(made.acquire())
            await asyncio.sleep(number / 20_000)
            if acquiring.cancel():
                await asyncio.gather(acquiring, return_exceptions=True)
            else:
                await made.release(await acquiring)
        slots = [await made.acquire(timeout_s=10) for _ in range(2)]
        assert made.status().leased == len(slots)


async def test_a_release_that_is_cancelled_before_its_node_hears_of_it_frees_the_slot() -> None:
    cluster, relay = FakeCluster(1), Relay()
    await cluster.head.start("127.0.0.1")
    port = int(cluster.head._addresses[0].rpartition(":")[2])
    cluster.head._addresses = (await relay.start(port),)
    made = ClusterPool(cast("Cluster", cluster), CONFIG)
    await made.start()
    slot = await made.acquire()
    relay.flows.clear()
    releasing = asyncio.ensure_future(made.release(slot))
    await asyncio.sleep(0.05)
    releasing.cancel()
    await asyncio.gather(releasing, return_exceptions=True)
    relay.flows.set()
    slots = [await made.acquire(timeout_s=10) for _ in range(2)]
    assert made.status().leased == len(slots)
    await made.stop()
    await cluster.close()
    assert relay.server is not None
    relay.server.close()


async def test_a_lease_that_expires_frees_its_slot_though_its_holder_hangs() -> None:
    async with pool(1, attrs.evolve(CONFIG, lease_timeout_s=0.5)) as (made, _):
        held = [await made.acquire() for _ in range(2)]
        next_one = await made.acquire(timeout_s=20)
        while made.status().leased > 1:
            await asyncio.sleep(0.01)
        for slot in held:
            with pytest.raises(StaleLeaseError, match="its lease expired; acquire another one"):
                await made.execute(slot, "bash", {"command": "true"})
            await made.release_if_held(slot)
        await made.release_if_held(next_one)  # it may have expired, too
        while made.status().free < 2:
            await asyncio.sleep(0.01)
        assert made.status().leased == 0


async def test_work_goes_to_the_node_that_had_its_repository_and_a_kept_slot_to_its_task() -> None:
    async with pool(2) as (made, _):
        first = await made.acquire(near="repo")
        await made.release(first)
        for _ in range(3):
            again = await made.acquire(near="repo")
            assert node_of(again) == node_of(first)
            await made.release(again)
        kept = await made.acquire("mine")
        await made.lease_of(kept).exec(["touch", "here"])
        await made.release(kept, reset_workspace=False)
        back = await made.acquire("mine")
        assert (node_of(back), back.workspace) == (node_of(kept), kept.workspace)
        assert (await made.lease_of(back).exec(["ls"])).stdout == b"here\n"


async def test_the_cluster_grows_for_waiters_which_are_served_in_order() -> None:
    async with pool(1, most=3) as (made, cluster):
        slots = await asyncio.gather(*(made.acquire(f"task{number}") for number in range(6)))
        assert len(cluster.nodes()) == 3
        assert Counter(map(node_of, slots)) == {"n1": 2, "n2": 2, "n3": 2}
        order: list[int] = []

        async def wait(number: int) -> None:
            slot = await made.acquire()
            order.append(number)
            await made.release(slot)

        waiting = [asyncio.ensure_future(wait(number)) for number in range(5)]
        await asyncio.sleep(0.1)
        assert order == []
        waiting[1].cancel()
        await made.release(slots[0])
        await asyncio.gather(*waiting, return_exceptions=True)
        assert order == [0, 2, 3, 4]


async def test_nodes_whose_pool_is_starting_are_counted_before_more_are_asked_for() -> None:
    async with pool(1, most=5) as (made, cluster):
        may_have, slots = asyncio.Event(), [await made.acquire() for _ in range(2)]

        async def give_late(node: Node, image: str) -> None:
            await may_have.wait()

        cluster.give_image = give_late  # type: ignore[method-assign]
        waiting = [asyncio.ensure_future(made.acquire())]
        while not made._joining:
            await asyncio.sleep(0.01)
        waiting.append(asyncio.ensure_future(made.acquire()))
        await asyncio.sleep(0.1)
        may_have.set()
        slots += await asyncio.gather(*waiting)
        assert Counter(map(node_of, slots)) == {"n1": 2, "n2": 2}
        assert cluster.wanted == 2


async def test_a_pool_starts_on_the_node_that_comes_in_place_of_a_lost_one() -> None:
    cluster, lost = FakeCluster(2), asyncio.Event()
    await cluster.head.start("127.0.0.1")

    async def lose_the_first(node: Node, image: str) -> None:
        if node.name == "n1":
            await cluster.kill("n1")
            lost.set()
            raise NodeLostError("node n1 is lost")

    async def replace() -> None:
        await lost.wait()
        await asyncio.sleep(0.1)
        cluster.want(1)

    cluster.give_image = lose_the_first  # type: ignore[method-assign]
    replacing, made = (
        asyncio.ensure_future(replace()),
        ClusterPool(cast("Cluster", cluster), CONFIG),
    )
    await made.start()
    assert node_of(await made.acquire()) == "n2"
    await made.stop()
    await cluster.close()
    await replacing


async def test_the_status_may_be_asked_for_while_nodes_join() -> None:
    async with pool(1, most=4) as (slots, cluster):
        cluster.want(4)
        while len(slots._members) < 4:
            assert "n1" in await slots.statuses()
        assert sorted(await slots.statuses()) == ["n1", "n2", "n3", "n4"]


async def test_a_lost_node_fails_its_leases_at_once_and_its_work_goes_elsewhere() -> None:
    async with pool(2) as (made, cluster):
        slots = [await made.acquire() for _ in range(4)]
        doomed = [slot for slot in slots if node_of(slot) == "n1"]
        running = asyncio.ensure_future(made.lease_of(doomed[0]).exec(["sleep", "60"]))
        waiting = asyncio.ensure_future(made.acquire("waits"))
        await asyncio.sleep(0.3)
        await cluster.kill("n1")
        with pytest.raises(SandboxLostError, match=r"node n1 .* is lost: killed by the test"):
            await running
        assert (made.status().leased, made.status().available) == (2, 0)
        for slot in doomed:
            with pytest.raises(NodeLostError):
                await made.execute(slot, "bash", {"command": "true"})
            await made.release(slot)
            with pytest.raises(StaleLeaseError):
                await made.release(slot)
        assert made.status().lost == 2
        survivor = next(slot for slot in slots if node_of(slot) == "n2")
        assert (await made.lease_of(survivor).exec(["echo", "on"])).stdout == b"on\n"
        await made.release(survivor)
        assert node_of(await waiting) == "n2"


async def test_an_acquire_that_was_lost_on_ten_nodes_is_not_tried_again() -> None:
    async with pool(1) as (made, cluster):
        peer, asked = cluster.nodes()[0].peer, list[str]()
        call = peer.call

        async def lose(method: str, *args: Any, **more: Any) -> Any:
            asked.append(method)
            if method == "pool.acquire":
                raise NodeLostError("the test says so")
            return await call(method, *args, **more)

        peer.call = lose  # type: ignore[method-assign]
        with pytest.raises(LostTooOftenError, match="lost on 10 nodes"):
            await made.acquire()
        assert asked.count("pool.acquire") == MOST_LOSSES
        assert made.status().free == 2


async def test_containers_that_do_not_start_are_an_error_that_says_why() -> None:
    config = hr.PoolConfig(
        spec=hr.ContainerSpec(image="localhost/no/such:1", limits=hr.Limits(pids=None)),
        slots_per_container=1,
        min_containers=0,
        acquire_timeout_s=20.0,
    )
    async with pool(1, config) as (made, _):
        with pytest.raises(PoolStartError, match="localhost/no/such:1"):
            await made.acquire()
        assert made.status().leased == 0
        assert made.status().free == made.status().total_slots


async def test_profiles_have_pools_on_the_nodes() -> None:
    async with pool(2) as (_, cluster):
        profiles = hr.Profiles(configs={"one": attrs.evolve(CONFIG, name="one")}, default="one")
        async with hr.PoolManager(
            partial(ClusterPool, cast("Cluster", cluster)), profiles
        ) as pools:
            async with pools.lease("task") as lease:
                assert (await lease.exec(["echo", "here"])).stdout == b"here\n"
                (result,) = await pools.execute_batch(
                    [(lease.slot, "bash", {"command": "echo there"})]
                )
                assert (lease.slot.profile, result.stdout) == ("one", "there\n")
            pools.pool_of(lease.slot).shrink()
            assert pools.status()["one"].leased == 0
