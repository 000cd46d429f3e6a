"""The containers of a pool: when they start and end, how many there are, and failures to start."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    EngineError,
    ImageNotFoundError,
    PoolClosedError,
    PoolError,
    PoolStartError,
    SlotTimeoutError,
)
from hyperruntime.layers.snapshots.snapshot import new_snapshot
from hyperruntime.pool.roster import StartLimit
from tests.doubles.slots import PromisedContainer, PromisedRuntime, SkippingClock
from tests.unit.pool.test_pool import fails, pool_of, until


async def test_w25_a_pool_starts_containers_in_parallel_up_to_a_limit_and_holds_no_lock() -> None:
    gate = threading.Event()

    class Held(PromisedRuntime):
        """Starts a container only while the gate is open."""

        def container(self, spec: hr.ContainerSpec) -> PromisedContainer:
            assert gate.wait(60)
            return super().container(spec)

    gate.set()
    runtime = Held(start_s=0.05)
    async with pool_of(
        runtime, max_containers=8, max_starting=3, slots_per_container=1, reset="clean"
    ) as pool:
        first, *_ = await asyncio.gather(*(pool.acquire() for _ in range(3)))
        gate.clear()
        others = [asyncio.create_task(pool.acquire()) for _ in range(4)]
        await until(lambda: pool.status().starting > 0)
        await pool.release(first)
        # while the others' containers are starting
        again = await asyncio.wait_for(others[0], 120)
        assert again.container == first.container
        assert 1 <= pool.status().starting <= 3
        gate.set()
        await asyncio.gather(*others[1:])
        assert runtime.most <= 3
        assert len(runtime.containers) <= 8


@pytest.mark.parametrize(("cores", "least", "most"), [(1, 1, 5), (8, 8, 20), (1000, 60, 64)])
def test_as_many_containers_start_at_once_as_the_machine_starts_quickly(
    cores: int, least: int, most: int
) -> None:
    limit, chance = StartLimit(64), random.Random(1)
    for _ in range(2000):
        starting = limit.now
        limit.note(max(1.0, starting / cores) * chance.uniform(1.0, 1.2), starting)
    assert least <= limit.now <= most
    for _ in range(3):
        limit.note_failure()
    assert limit.now <= 8
    for _ in range(2000):  # as many cores, but twice as slow
        starting = limit.now
        limit.note(max(1.0, starting / cores) * chance.uniform(2.0, 2.4), starting)
    assert least <= limit.now <= most


async def test_r12_an_idle_pool_shrinks_to_its_minimum() -> None:
    clock, runtime = SkippingClock(), PromisedRuntime()
    async with (
        pool_of(runtime, min_containers=1, idle_timeout_s=100) as pool,
        pool_of(runtime) as empty,
    ):
        for slot in [await pool.acquire() for _ in range(6)]:
            await pool.release(slot)
        await empty.release(await empty.acquire())
        await pool.settle()
        await clock.skip(90)
        await until(lambda: pool.status().free == 6)
        assert pool.status().containers == 3
        await clock.skip(60)
        await until(lambda: pool.status().containers == 1 and empty.status().containers == 0)
        await clock.skip(1000)
        assert len(runtime.open) == 1
        assert (await empty.acquire()).generation == 0


async def test_r12_a_container_past_its_lifetime_ends_after_its_last_lease() -> None:
    clock, runtime = SkippingClock(), PromisedRuntime()
    async with pool_of(runtime, min_containers=1, max_lifetime_s=1000, idle_timeout_s=None) as pool:
        slot = await pool.acquire("long")
        await clock.skip(1001)
        await until(lambda: pool.status().draining == 1)
        assert (await pool.execute(slot, "bash", {"command": "true"})).slot_id == slot.slot_id
        newer = await pool.acquire("new")
        assert newer.container != slot.container
        await pool.release(slot)
        await until(lambda: len(runtime.open) == 1)
        assert runtime.open[0].name == newer.container


async def test_r13_an_idle_container_that_hangs_is_replaced_and_one_in_use_is_not_checked() -> None:
    clock, runtime = SkippingClock(), PromisedRuntime()
    async with pool_of(
        runtime, min_containers=2, health_interval_s=30, idle_timeout_s=None
    ) as pool:
        slot = await pool.acquire()
        for container in runtime.containers:
            container.hangs = True
        await clock.skip(29)
        assert pool.status().lost == 0
        await clock.skip(2)
        await until(lambda: pool.status().lost == 1 and pool.status().containers == 2)
        assert {container.name for container in runtime.open} > {slot.container}
        await pool.release(slot)
        await pool.settle()
        await clock.skip(31)
        await until(lambda: pool.status().lost == 2 and pool.status().containers == 2)
        assert not any(container.hangs for container in runtime.open)


async def test_r13_a_container_that_is_leased_during_its_health_check_is_kept() -> None:
    clock, runtime, asked, answer = (
        SkippingClock(),
        PromisedRuntime(),
        threading.Event(),
        threading.Event(),
    )
    async with pool_of(runtime, min_containers=1, max_containers=1, health_interval_s=30) as pool:

        def responds(_: float | None = None) -> bool:
            asked.set()
            return not answer.wait(60)

        runtime.containers[0].responds = responds  # type: ignore[method-assign]
        await clock.skip(31)
        await until(asked.is_set)
        slot = await pool.acquire()
        answer.set()
        await clock.skip(1)
        assert (await pool.lease_of(slot).exec(["true"])).exit_code == 0
        assert pool.status().lost == 0
        await pool.release(slot)


async def test_r13_a_health_check_that_raises_is_repeated() -> None:
    clock, runtime = SkippingClock(), PromisedRuntime()
    asked: list[int] = []
    async with pool_of(
        runtime, min_containers=1, health_interval_s=30, idle_timeout_s=None
    ) as pool:

        def responds(_: float | None = None) -> bool:
            asked.append(len(asked))
            if len(asked) == 1:
                raise OSError("no descriptor left")
            return len(asked) < 4

        runtime.containers[0].responds = responds  # type: ignore[method-assign]
        for count in range(1, 5):
            await until(lambda: pool.status().free == 2)
            await clock.skip(31)
            await until(lambda: len(asked) == count)  # noqa: B023 - awaited at once
            await asyncio.sleep(0.05)
        await until(lambda: pool.status().lost == 1)


async def test_r13_an_idle_container_that_ends_is_replaced_up_to_the_minimum() -> None:
    runtime = PromisedRuntime()
    async with pool_of(runtime, min_containers=1) as pool:
        runtime.containers[0].end()
        await until(lambda: len(runtime.open) == 1 and runtime.open[0].is_alive)
        await until(lambda: pool.status().free == 2)
        assert runtime.containers[0].is_closed


async def test_w25_a_start_that_fails_halfway_leaves_no_container() -> None:
    runtime = PromisedRuntime()
    pool = pool_of(runtime, min_containers=3, max_starting=1)
    original = runtime.container

    def container(spec: hr.ContainerSpec) -> Any:
        if len(runtime.containers) == 2:
            raise EngineError("the engine had enough")
        return original(spec)

    runtime.container = container  # type: ignore[method-assign]
    await fails(EngineError, pool.start(), "had enough")
    assert len(runtime.containers) == 2
    assert runtime.open == []
    await fails(PoolClosedError, pool.acquire())


async def test_w18_a_permanent_failure_to_start_fails_waiting_acquires_at_once() -> None:
    runtime = PromisedRuntime(failures=[ImageNotFoundError("promised", "build it")])
    async with pool_of(runtime) as pool:
        await fails(
            PoolStartError,
            pool.acquire(timeout_s=20),
            "image 'promised' is not on this machine; build it",
        )
        # retried, and the image exists now
        assert (await pool.acquire(timeout_s=20)).generation == 0


async def test_a_temporary_failure_to_start_is_retried_with_pauses_and_not_reported() -> None:
    runtime = PromisedRuntime(failures=[EngineError("busy"), EngineError("busy")])
    clock, loop = SkippingClock(), asyncio.get_running_loop()
    async with pool_of(runtime) as pool:
        began, acquired = loop.time(), asyncio.create_task(pool.acquire())
        while not acquired.done():
            await clock.skip(0.2)
        assert loop.time() - began >= 0.25 + 0.5
        assert (await acquired).generation == 0
        assert pool.status().error == ""


async def test_a_repeated_failure_to_start_is_reported_after_some_retries() -> None:
    runtime = PromisedRuntime(failures=[EngineError("broken")] * 3)
    clock = SkippingClock()
    async with pool_of(runtime) as pool:
        acquired = asyncio.create_task(pool.acquire())
        while not acquired.done():
            await clock.skip(0.5)
        await fails(PoolStartError, acquired, "broken")


async def test_a_failure_to_start_does_not_fail_acquires_that_a_released_slot_can_serve() -> None:
    runtime = PromisedRuntime()
    async with pool_of(runtime, max_containers=2, slots_per_container=1, reset="clean") as pool:
        held = await pool.acquire()
        runtime.fail(*[ImageNotFoundError("promised", "build it")] * 100)
        waiting = asyncio.create_task(pool.acquire())
        await until(lambda: bool(pool.status().error))
        await asyncio.sleep(0.05)
        await pool.release(held)
        assert (await waiting).container == held.container
        await fails(
            SlotTimeoutError,
            pool.acquire(timeout_s=0.1),
            "containers do not start: image 'promised'",
        )


async def test_r11_stop_closes_containers_that_are_starting() -> None:
    runtime = PromisedRuntime(start_s=0.2)
    async with pool_of(runtime) as pool:
        waiting = asyncio.create_task(pool.acquire())
        await asyncio.sleep(0.05)
        await pool.stop()
        await fails(PoolClosedError, waiting)
    assert runtime.open == []


async def test_a_slot_of_its_own_is_rolled_back_or_its_container_is_replaced() -> None:
    runtime = PromisedRuntime(snapshots=True)
    base = new_snapshot("promised", "promised", ())
    async with pool_of(runtime, max_containers=1, slots_per_container=1) as pool:
        async with pool.lease("one") as lease:
            first = lease.slot
        async with pool.lease("two", base=base) as lease:
            assert (lease.slot.container, lease.slot.generation) == (first.container, 1)
        await pool.settle()
        (container,) = runtime.containers
        assert [one.layers for one in container.rollbacks] == [(), (), ()]
        assert container.rollbacks[1] is base
        assert container.rollbacks[0] is container.rollbacks[2]
        assert pool.status().reset == "rollback"

        container.refuses = lambda args: "mkdir" in args
        await fails(PoolError, pool.acquire("three", base=base), "could not be prepared")
        assert (await pool.acquire("four")).container != first.container
        assert [one.is_closed for one in runtime.containers] == [True, False]


async def test_a_slot_whose_acquire_was_cancelled_during_its_rollback_is_reset() -> None:
    runtime, gate = PromisedRuntime(snapshots=True), threading.Event()
    base = new_snapshot("promised", "promised", ())
    async with pool_of(runtime, max_containers=1, slots_per_container=1) as pool:
        async with pool.lease():
            (container,) = runtime.containers
        await pool.settle()
        container.refuses = lambda _: not gate.wait(60)
        waiting = asyncio.create_task(pool.acquire("cancelled", base=base))
        await until(lambda: container.rollbacks[-1] is base)
        waiting.cancel()
        await fails(asyncio.CancelledError, waiting)
        gate.set()
        await pool.settle()
        assert container.rollbacks[-1] is container.rollbacks[0]
        assert (pool.status().free, pool.status().leased) == (1, 0)
