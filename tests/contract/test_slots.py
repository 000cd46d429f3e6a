"""Facts behind the benchmarks of slots: parallel work, order, isolated failures, and no leaks.

The tests do not measure time; every wait has a generous limit.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import hyperruntime as hr
from hyperruntime.host.process import HostProcess, spawn, wait_until
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool.values.config import PoolConfig

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]


def pool_of(runtime: hr.Runtime, image: str, containers: int) -> SlotPool:
    """Return a pool with a number of warm containers; each has two slots, or one if the engine has
    no users.
    """
    config = PoolConfig(
        spec=hr.ContainerSpec(image=image),
        slots_per_container=2 if runtime.info.users else 1,
        min_containers=containers,
        max_containers=containers,
    )
    return SlotPool(runtime, config)


def nap(number: int) -> str:
    """Return a command that sleeps and that no other run of these tests on this machine uses."""
    return f"sleep 74{number:02}.{os.getpid()}"


def running(command: str) -> list[psutil.Process]:
    """Return the processes of this machine whose command line is exactly this command."""
    return [
        found
        for found in psutil.process_iter(["cmdline"])
        if found.info["cmdline"] == command.split()
    ]


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


def test_requests_of_several_slots_run_in_parallel_and_the_event_loop_keeps_running(
    runtime: hr.Runtime, base_image: str
) -> None:
    """R16, W1: a batch must not run its slots one by one, and must not block the event loop."""

    async def go() -> list[str]:
        async with pool_of(runtime, base_image, 3) as pool:
            slots = [await pool.acquire(f"t{n}") for n in range(3)]
            requests = [
                (slot, "bash", {"command": f"echo {n}; {nap(1)}"}) for n, slot in enumerate(slots)
            ]
            batch = asyncio.create_task(pool.execute_batch(requests))
            # the event loop runs, and so do all three
            await until(lambda: len(running(nap(1))) == 3)
            for process in running(nap(1)):
                process.kill()
            return [result.stdout for result in await batch]

    assert asyncio.run(go()) == ["0\n", "1\n", "2\n"]


def test_requests_of_one_slot_run_one_by_one_in_order(runtime: hr.Runtime, base_image: str) -> None:
    """R16: requests of one slot run one by one, each with its own failure and deadline."""

    async def go() -> list[Any]:
        async with pool_of(runtime, base_image, 1) as pool:
            slot = await pool.acquire("t")
            commands = [
                "mkdir lock; sleep 0.2; rmdir lock; echo 0",
                "[ ! -e lock ] && echo 1",
                "exit 3",
                "sleep 60",
            ]
            requests = [
                (slot, "bash", {"command": command, **({"timeout": 1} if "60" in command else {})})
                for command in [*commands, "echo after"]
            ]
            return await pool.execute_batch(requests)

    results = asyncio.run(go())
    assert [(result.stdout, result.metadata["returncode"]) for result in results] == [
        ("0\n", 0),
        ("1\n", 0),
        ("", 3),
        ("", 124),
        ("after\n", 0),
    ]
    assert [result.success for result in results] == [True, True, False, False, True]
    assert len({result.execution_id for result in results}) == len(results)


def test_a_killed_container_fails_only_its_own_requests(
    runtime: hr.Runtime, base_image: str, engine_command: Any
) -> None:
    """R13, W3: a dead container is reported to the holders of its leases and replaced; the capacity
    is restored.
    """

    async def go() -> None:
        async with pool_of(runtime, base_image, 3) as pool:
            total = pool.status().total_slots
            slots = [await pool.acquire(f"t{n}") for n in range(total)]
            doomed = slots[0].container
            requests = [(slot, "bash", {"command": f"{nap(2)}; echo done"}) for slot in slots]
            batch = asyncio.create_task(pool.execute_batch(requests))
            await until(lambda: len(running(nap(2))) == total)
            await asyncio.to_thread(engine_command.remove, doomed)
            await until(lambda: len(running(nap(2))) < total)
            for process in running(nap(2)):
                process.kill()
            results = await batch
            assert [result.stdout == "done\n" for result in results] == [
                slot.container != doomed for slot in slots
            ]
            for slot in slots:
                await pool.release(slot)
            again = [await pool.acquire(f"again{n}") for n in range(total)]
            assert doomed not in {slot.container for slot in again}

    asyncio.run(go())


@pytest.mark.slow
def test_many_leases_leave_nothing_behind(runtime: hr.Runtime, base_image: str) -> None:
    """R6, R11: hundreds of acquires, execs and releases add no slot, process, file or
    descriptor.
    """
    cycles = 300 if runtime.info.users else 24

    async def go() -> None:
        async with pool_of(runtime, base_image, 3) as pool:
            await _cycle(pool, cycles // 4)
            before = after = await _footprint(runtime, pool)
            growing = set(after)
            # a leak grows in each round; one more lane or thread is allowed once
            for _ in range(3):
                before = after
                await _cycle(pool, cycles)
                after = await _footprint(runtime, pool)
                growing = {name for name in growing if after[name] > before[name]}
                if not growing:
                    break
            assert not growing, (before, after)

    asyncio.run(go())


async def _cycle(pool: SlotPool, cycles: int) -> None:
    left = iter(range(cycles))

    async def work() -> None:
        for number in left:
            async with pool.lease(f"c{number}") as lease:
                result = await lease.exec(
                    ["sh", "-c", f"echo x >f; echo x >/tmp/.f; {nap(3)} & echo done"]
                )
                assert result.stdout == b"done\n", result

    await asyncio.gather(*(work() for _ in range(6)))
    await pool.settle()


async def _footprint(runtime: hr.Runtime, pool: SlotPool) -> dict[str, int]:
    us, most = psutil.Process(), pool.config.max_containers

    def calm() -> bool:
        status = pool.status()
        return (
            not status.starting
            and not status.draining
            and status.free >= status.total_slots >= most
        )

    await until(calm)
    await until(lambda: running(nap(3)) == [])
    gc.collect()
    owned = [found for found in runtime.containers() if found.owner.pid == us.pid]
    return {
        "slots": pool.status().total_slots,
        "containers": len(owned),
        "children": len(us.children(recursive=True)),
        "descriptors": us.num_fds(),
        "threads": us.num_threads(),
        "files": sum(len(names) for _, _, names in os.walk(runtime._owner.private_dir)),
    }


OWNER = """
import asyncio, sys
import hyperruntime as hr
from tests.contract.test_slots import pool_of

async def own(runtime):
    async with pool_of(runtime, sys.argv[2], 3) as pool:
        slots = [await pool.acquire(f"t{n}") for n in range(pool.status().total_slots)]
        command = f"setsid {sys.argv[3]} & trap '' TERM; {sys.argv[4]}"
        running = asyncio.create_task(pool.execute_batch([(slot, "bash", {"command": command}) for slot in slots]))
        waiting = asyncio.create_task(pool.acquire("waits"))
        await asyncio.sleep(0.5)
        print(len(slots), flush=True)
        await running

with hr.open_runtime(sys.argv[1]) as runtime:
    asyncio.run(own(runtime))
"""


@pytest.fixture
def owner(runtime: hr.Runtime, base_image: str) -> Iterator[HostProcess]:
    """A process that owns a pool; commands run in all its slots."""
    with spawn(
        [sys.executable, "-c", OWNER, runtime.name, base_image, nap(4), nap(5)], cwd=ROOT
    ) as process:
        yield process
        process.kill()


def test_nothing_is_left_of_a_pool_whose_owner_was_killed(
    runtime: hr.Runtime, owner: HostProcess
) -> None:
    """R14: a new controller finds nothing to adopt, because nothing outlives its owner, even after
    SIGKILL.
    """
    assert owner.stdout is not None
    assert int(owner.stdout.readline()) >= 3
    assert wait_until(lambda: len(running(nap(4))) >= 3, 60)
    owner.kill()
    assert wait_until(lambda: not running(nap(4)) and not running(nap(5)), 60)
    assert wait_until(
        lambda: all(found.owner.pid != owner.pid for found in runtime.containers()), 60
    )
