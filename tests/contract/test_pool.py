"""A pool on a real engine: many slots at once, containers that die, an owner that dies."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import SandboxLostError, StaleLeaseError, TransferTimeoutError
from hyperruntime.host.process import run_process, wait_until
from tests.contract.pools import SUPERVISOR, containers, make_pool, shell, until

pytestmark = pytest.mark.engine

Batch = list[tuple[hr.Slot, str, dict[str, Any]]]


async def test_w1_r16_slots_work_at_the_same_time_and_the_event_loop_keeps_running(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """The commands wait until this program has seen all of them run."""
    tmp_path.chmod(0o777)
    spec = hr.ContainerSpec(
        image=base_image,
        mounts=(hr.Mount(source=str(tmp_path), target="/shared", read_only=False),),
    )

    async with make_pool(
        runtime, base_image, spec=spec, min_containers=3, max_containers=3
    ) as pool:
        slots = [await pool.acquire() for _ in range(3)]
        command = "mktemp /shared/XXXXXX; until [ -e /shared/go ]; do sleep 0.05; done; echo met"
        batch = asyncio.create_task(
            pool.execute_batch([(slot, "bash", {"command": command}) for slot in slots])
        )
        # all commands run, and so does the event loop
        await until(lambda: len(list(tmp_path.iterdir())) == 3)
        (tmp_path / "go").touch()
        assert all(result.stdout.endswith("met\n") for result in await batch)


async def test_r13_w12_a_killed_container_fails_only_its_own_requests_and_is_replaced(
    runtime: hr.Runtime, base_image: str, engine_command: Any, tmp_path: Path
) -> None:
    """Its commands are not run a second time."""
    tmp_path.chmod(0o777)

    one: dict[str, Any] = {"slots_per_container": 2} if runtime.info.users else {}
    mount = hr.Mount(source=str(tmp_path), target="/shared", read_only=False)
    one["spec"] = hr.ContainerSpec(image=base_image, mounts=(mount,))
    async with make_pool(runtime, base_image, min_containers=2, max_containers=2, **one) as pool:
        capacity = pool.status().total_slots
        slots = [await pool.acquire(str(number)) for number in range(capacity)]
        doomed = slots[0].container
        command = "mktemp /shared/XXXXXX; until [ -e /shared/go ]; do sleep 0.1; done; echo ok"
        requests: Batch = [(slot, "bash", {"command": command}) for slot in slots]
        requests.append((slots[0], "bash", {"command": "echo never"}))
        batch = asyncio.create_task(pool.execute_batch(requests))
        await until(lambda: len(list(tmp_path.iterdir())) == capacity)
        await asyncio.to_thread(engine_command.remove, doomed)
        await until(lambda: pool.status().lost == 1)
        (tmp_path / "go").touch()
        # before its leases are released
        await until(lambda: pool.status().total_slots >= capacity)
        for slot, result in zip([*slots, slots[0]], await batch, strict=True):
            assert result.success == (slot.container != doomed), result
            for fact in ("lost", "infrastructure"):
                assert bool(result.metadata.get(fact)) == (slot.container == doomed)
        with pytest.raises(SandboxLostError):
            await pool.execute(slots[0], "bash", {"command": "true"})
        for slot in slots:
            await pool.release(slot)
        again = [await pool.acquire() for _ in range(capacity)]
        assert doomed not in {slot.container for slot in again}
        assert len(list(tmp_path.iterdir())) == capacity + 1


@pytest.mark.slow
async def test_r13_an_idle_container_that_hangs_is_detected_and_replaced(
    runtime: hr.Runtime, base_image: str
) -> None:
    async with make_pool(runtime, base_image, health_interval_s=2) as pool:
        (hung,) = containers(pool)
        await asyncio.sleep(3)
        assert pool.status().lost == 0  # the container answered the health check
        await hung.aexec(["sh", "-c", f"kill -STOP $({SUPERVISOR})"], timeout_s=6)
        await until(
            lambda: pool.status().lost >= 1 and pool.status().free == pool.status().total_slots > 0
        )
        async with pool.lease("next") as lease:
            assert lease.slot.container != hung.name


async def test_r13_the_error_after_a_full_disk_names_the_disk_limit(
    runtime: hr.Runtime, base_image: str
) -> None:
    spec = hr.ContainerSpec(image=base_image, limits=hr.Limits(disk_bytes=16 * 1024**2))
    async with (
        make_pool(runtime, base_image, spec=spec, slots_per_container=1) as pool,
        pool.lease("full") as lease,
    ):
        with pytest.raises(SandboxLostError, match=r"limits\.disk_bytes"):
            await lease.exec(["sh", "-c", "head -c 1G /dev/zero >big; sleep 60"])


async def test_r12_r15_a_lease_copies_files_in_and_out(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    (tmp_path / "in" / "a b").mkdir(parents=True)
    (tmp_path / "in" / "a b" / "f\n").write_text("text")
    async with make_pool(runtime, base_image) as pool:
        async with pool.lease("files") as lease:
            await lease.put(tmp_path / "in", "tree")
            assert (
                await shell(lease, "cat tree/*/*; stat -c %U tree >/dev/null; echo more >tree/new")
                == "text"
            )
            await lease.get("tree", tmp_path / "out")
            assert (
                await lease.exec(["pwd"], workdir="tree")
            ).stdout.decode() == f"{lease.slot.workspace}/tree\n"
        assert (tmp_path / "out" / "a b" / "f\n").read_text() == "text"
        assert (tmp_path / "out" / "new").read_text() == "more\n"
        with pytest.raises(StaleLeaseError):
            await lease.exec(["true"])


async def test_r11_copies_of_a_lease_end_at_their_deadline_and_with_the_lease(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    tar = '#!/bin/sh\ncase "$*" in */dev/null*) exit 1; esac\n: >/tmp/evil/begun\nexec sleep 9403\n'
    (tmp_path / "in").write_bytes(bytes(1 << 22))

    async def begun(lease: hr.Sandbox) -> bool:
        return (await lease.exec(["rm", "/tmp/evil/begun"])).exit_code == 0

    spec = hr.ContainerSpec(
        image=base_image, env={"PATH": "/tmp/evil:/usr/local/bin:/usr/bin:/bin"}
    )
    async with make_pool(runtime, base_image, spec=spec) as pool, pool.lease() as lease:
        make = ["sh", "-c", "mkdir /tmp/evil && cat >/tmp/evil/tar && chmod 755 /tmp/evil/tar"]
        (await lease.exec(make, input=tar.encode())).check()
        with pytest.raises(TransferTimeoutError):
            await lease.get("/etc", tmp_path / "out", timeout_s=0.8)
        with pytest.raises(TransferTimeoutError):
            await lease.put(tmp_path / "in", "tree", timeout_s=0.8)
        left = "ls -A; grep -al '[s]leep.9403' /proc/[0-9]*/cmdline 2>/dev/null"
        assert (await lease.exec(["sh", "-c", left])).stdout == b""
        await begun(lease)
        copying = asyncio.ensure_future(lease.get("/etc", tmp_path / "out", timeout_s=None))
        while not await begun(lease):
            assert not copying.done()
        await pool.release(lease.slot)
        with pytest.raises(StaleLeaseError):
            await copying
    assert os.listdir(tmp_path) == ["in"]


async def test_r11_the_end_of_a_lease_ends_its_commands(
    runtime: hr.Runtime, base_image: str
) -> None:
    async with make_pool(runtime, base_image, lease_timeout_s=2, max_containers=2) as pool:
        sibling, slot = await pool.acquire("sibling"), await pool.acquire("slow")
        running = asyncio.create_task(pool.lease_of(slot).exec(["sleep", "60"]))
        with pytest.raises(StaleLeaseError, match="expired"):
            await running
        await until(lambda: pool.status().leased == 0)
        with pytest.raises(StaleLeaseError):
            await pool.execute(sibling, "bash", {"command": "true"})
        await pool.settle()
        for container in containers(pool):
            assert b"sleep 60" not in container.exec(["ps", "-axo", "args="]).stdout


async def test_a_lease_can_end_its_processes_and_keep_its_files(
    runtime: hr.Runtime, base_image: str
) -> None:
    async with make_pool(runtime, base_image, max_containers=2) as pool:
        slot, sibling = await pool.acquire("one"), await pool.acquire("sibling")
        start = (
            "touch f; setsid sleep 961 >/dev/null 2>&1 & (trap '' TERM; sleep 962) "
            ">/dev/null 2>&1 & true"
        )
        await shell(pool.lease_of(slot), start)
        await shell(pool.lease_of(sibling), "setsid sleep 963 >/dev/null 2>&1 & true")
        await pool.lease_of(slot).end_processes()
        left = await shell(pool.lease_of(slot), "ls; ps -axo args= | grep '^sleep 96[12]' || true")
        assert left == "f\n"
        assert "sleep 963" in await shell(pool.lease_of(sibling), "ps -axo args=")


FORGETFUL = textwrap.dedent(
    """
    import sys
    import time
    import hyperruntime as hr
    from hyperruntime.pool.sync import SyncPool

    spec = hr.ContainerSpec(image=sys.argv[2])
    pool = SyncPool(hr.open_runtime(sys.argv[1]), hr.PoolConfig(spec=spec))
    slot = pool.acquire()
    pool.submit(pool.pool.lease_of(slot).exec(["sleep", "943"]))
    time.sleep(0.5)
    print(slot.container, flush=True)
    """
)


def test_a_program_that_does_not_close_its_pool_ends_and_leaves_nothing(
    runtime_name: str, base_image: str, engine_command: Any
) -> None:
    result = run_process(
        [sys.executable, "-W", "ignore", "-c", FORGETFUL, runtime_name, base_image], timeout_s=180
    )
    assert result.exit_code == 0, result.stderr
    name = result.stdout.decode().strip()
    assert wait_until(lambda: name not in engine_command.containers(), 60)


def test_a_program_without_asyncio_can_use_a_pool(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    config = make_pool(runtime, base_image).config
    with hr.open_pool(config, runtime) as pool:
        with pool.lease("sync") as lease:
            assert lease.exec(["pwd"]).stdout.decode().strip() == lease.slot.workspace
            (tmp_path / "f").write_text("x")
            lease.put(tmp_path / "f", "f")
            assert lease.tool("bash", {"command": "cat f"}).stdout == "x"
        slot = pool.acquire("again")
        batch: Batch = [
            (slot, "bash", {"command": "echo 1"}),
            (slot, "bash", {"command": "echo 2"}),
        ]
        assert [result.stdout for result in pool.execute_batch(batch)] == ["1\n", "2\n"]
        future = pool.submit(pool.pool.lease_of(slot).exec(["sleep", "60"]))
        time.sleep(0.3)
        assert future.cancel()
        pool.release(slot)
        with pytest.raises(StaleLeaseError):
            pool.release(slot)
        pool.settle()
        assert pool.status().leased == 0
        child = os.fork()
        if child == 0:
            try:
                pool.acquire()
            except hr.HyperRuntimeError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


async def test_with_directory_isolation_slots_share_a_user_and_are_still_reset(
    runtime: hr.Runtime, base_image: str
) -> None:
    numbers = {"slots_per_container": 2, "isolation": "directory"}
    async with make_pool(runtime, base_image, **numbers) as pool:
        one, two = await pool.acquire("one"), await pool.acquire("two")
        assert one.container == two.container
        for slot in (one, two):
            script = (
                "touch .f; mkdir -p d/e; chmod -R a-w d; setsid sleep 951 >/dev/null 2>&1 & "
                "echo $PWD"
            )
            assert (await shell(pool.lease_of(slot), script)).strip() == slot.workspace
        await pool.release(one)
        await pool.settle()
        count = "ps -axo args= | grep -c '^sleep 951'"
        assert (await shell(pool.lease_of(two), f"{count}; ls -A")).split() == ["1", ".f", "d"]
        again = await pool.acquire("three")
        assert (again.slot_id, await shell(pool.lease_of(again), "ls -A")) == (one.slot_id, "")
