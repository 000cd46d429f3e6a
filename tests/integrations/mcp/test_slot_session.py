"""The slot of a client: leased with the first call, released at the end."""

from __future__ import annotations

import asyncio
from typing import cast

import hyperruntime as hr
from hyperruntime_mcp.slot_session import SlotSession
from tests.doubles.slots import PromisedRuntime


def pool_of(runtime: PromisedRuntime) -> hr.SlotPool:
    spec = hr.ContainerSpec(image="promised")
    config = hr.PoolConfig(
        spec=spec, slots_per_container=1, max_containers=1, acquire_timeout_s=0.05
    )
    return hr.SlotPool(cast(hr.Runtime, runtime), config)


async def test_a_slot_is_leased_with_the_first_call_and_kept_until_the_end() -> None:
    async with pool_of(PromisedRuntime()) as pool:
        async with (
            SlotSession(pool, pool.config.tools) as session,
            SlotSession(pool, pool.config.tools) as waiting,
        ):
            assert pool.status().leased == 0
            results = await asyncio.gather(
                *(session.call("bash", {"command": "true"}) for _ in range(5))
            )
            assert len({result.slot_id for result in results}) == 1
            assert pool.status().leased == 1
            full = await waiting.call("bash", {"command": "true"})
            assert full.error.startswith("no slot of pool 'default' became free within 0.05 s")
            assert not full.success
        assert pool.status().leased == 0


async def test_a_pool_that_was_stopped_is_reported() -> None:
    pool = pool_of(PromisedRuntime())
    async with SlotSession(pool, pool.config.tools) as session:
        async with pool:
            assert (await session.call("bash", {"command": "true"})).success
        assert (await session.call("bash", {"command": "true"})).error
