"""Hundreds of leases leak nothing.

The test does not measure time; every wait has a generous limit.
"""

from __future__ import annotations

import asyncio
import gc
import os

import psutil
import pytest

import hyperruntime as hr
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool_values.config import PoolConfig
from tests.contract.pools import until

pytestmark = pytest.mark.engine


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


@pytest.mark.slow
async def test_many_leases_leave_nothing_behind(runtime: hr.Runtime, base_image: str) -> None:
    """R6, R11: hundreds of acquires, execs and releases add no slot, process, file or
    descriptor.
    """
    cycles = 300 if runtime.info.users else 24

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
