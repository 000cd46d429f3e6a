"""R15, W2: one manager for several pools; each slot finds its own pool."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.errors import ImageNotFoundError, PoolClosedError, SpecError, StaleLeaseError
from tests.doubles.slots import PromisedRuntime
from tests.unit.pool.test_pool import fails, until


def manager_of(runtime: PromisedRuntime, *names: str, **numbers: Any) -> hr.PoolManager:
    """Return a manager with one profile per name; the name is also the image."""
    given = {"slots_per_container": 2, "min_containers": 0, **numbers}
    configs = [
        hr.PoolConfig(spec=hr.ContainerSpec(image=name), name=name, **given) for name in names
    ]
    return hr.PoolManager(cast(hr.Runtime, runtime), hr.Profiles.of(*configs))


async def test_w2_slots_of_several_profiles_have_unique_names_and_find_their_pool() -> None:
    runtime = PromisedRuntime()
    async with manager_of(runtime, "a", "b") as pools:
        slots = [await pools.acquire(profile=name) for name in "abab"]
        assert len({slot.slot_id for slot in slots}) == 4
        assert [slot.profile for slot in slots] == list("abab")
        for slot in slots:
            place = next(c for c in runtime.containers if c.name == slot.container)
            assert place.spec.image == slot.profile
            await pools.lease_of(slot).exec(["mark", slot.slot_id])
            assert ["mark", slot.slot_id] in place.commands
        for slot in slots:
            await pools.release(slot)
            await fails(StaleLeaseError, pools.release(slot))
        await fails(StaleLeaseError, pools.release(attrs.evolve(slots[0], profile="b")))
        assert {name: status.leased for name, status in pools.status().items()} == {
            "a": 0,
            "b": 0,
        }


async def test_r15_a_pool_starts_on_its_first_acquire_and_only_once() -> None:
    runtime = PromisedRuntime(start_s=0.05)
    async with manager_of(runtime, "a", "b", min_containers=1) as pools:
        assert list(pools.list_profiles()) == ["a", "b"]
        assert pools.status() == {}
        slots = await asyncio.gather(*(pools.acquire() for _ in range(2)))
        assert {slot.profile for slot in slots} == {"a"}
        assert len(runtime.containers) == 1
        await fails(SpecError, pools.acquire(profile="c"), "unknown profile 'c'")
    await fails(PoolClosedError, pools.acquire())
    assert runtime.open == []


async def test_a_pool_that_failed_to_start_is_started_again_by_the_next_call() -> None:
    runtime = PromisedRuntime(failures=[ImageNotFoundError("a", "build it")])
    async with manager_of(runtime, "a", min_containers=1) as pools:
        await fails(ImageNotFoundError, pools.acquire(), "build it")
        assert (await pools.acquire()).profile == "a"


async def test_pools_are_found_by_spec_and_the_least_recently_used_close_their_containers() -> None:
    runtime = PromisedRuntime()
    async with manager_of(runtime, "a") as pools:
        pools.max_spec_pools = 2
        specs = [hr.ContainerSpec(image=f"item-{number}") for number in range(4)]
        for spec in specs:
            async with pools.lease(spec=spec) as lease:
                assert lease.slot.profile.startswith("spec-")
            pool = await pools.pool_for(spec)
            assert isinstance(pool, hr.SlotPool)
            await pool.settle()
        await until(lambda: sum(one.containers for one in pools.status().values()) == 2)
        await until(lambda: [c.spec.image for c in runtime.open] == ["item-2", "item-3"])
        first = await pools.pool_for(specs[0])
        assert first is await pools.pool_for(hr.ContainerSpec(image="item-0"))
        assert [c.spec.image for c in runtime.open] == ["item-2", "item-3"]
        slot = await first.acquire()
        assert slot.profile == first.config.name


def test_profile_names_must_be_unique_and_there_must_be_a_profile() -> None:
    config = hr.PoolConfig(spec=hr.ContainerSpec(image="x"))
    with pytest.raises(SpecError):
        hr.Profiles.of(config, config)
    with pytest.raises(SpecError):
        hr.Profiles.of()
