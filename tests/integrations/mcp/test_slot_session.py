"""The slot of a client: leased with the first call, replaced when it is lost, released at the
end.
"""

from __future__ import annotations

import asyncio
from typing import cast

import hyperruntime as hr
from hyperruntime_mcp.slot_session import SlotSession
from tests.doubles.slots import PromisedRuntime

LOST = (
    "this session lost its container, with all files and processes in it; the next call gets a "
    "new one"
)


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


async def test_a_lost_container_fails_one_call_and_is_replaced() -> None:
    runtime = PromisedRuntime()
    async with pool_of(runtime) as pool, SlotSession(pool, pool.config.tools) as session:
        first = await session.call("bash", {"command": "true"})
        runtime.containers[-1].end()
        assert (await session.call("bash", {"command": "true"})).error == LOST
        assert pool.status().leased == 0
        after = await session.call("bash", {"command": "true"})
        assert after.success
        assert after.slot_id != first.slot_id


async def test_the_policy_of_a_session_replaces_that_of_its_pool() -> None:
    async with (
        pool_of(PromisedRuntime()) as pool,
        SlotSession(pool, hr.ToolPolicy(tools=("search",))) as session,
    ):
        assert "not allowed" in (await session.call("bash", {"command": "true"})).error


async def test_a_pool_that_was_stopped_is_reported() -> None:
    pool = pool_of(PromisedRuntime())
    async with SlotSession(pool, pool.config.tools) as session:
        async with pool:
            assert (await session.call("bash", {"command": "true"})).success
        assert (await session.call("bash", {"command": "true"})).error
