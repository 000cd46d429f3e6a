"""Leases: which task gets a slot and when, and the errors for stale handles. The containers are
fakes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    PoolClosedError,
    SandboxLostError,
    SlotTimeoutError,
    SpecError,
    StaleLeaseError,
)
from hyperruntime.pool.tools.dispatch import run_batch
from tests.doubles.slots import PromisedRuntime, SkippingClock

SPEC = hr.ContainerSpec(image="promised")


def pool_of(runtime: PromisedRuntime, **numbers: Any) -> hr.SlotPool:
    """Return a pool; it has two slots per container by default."""
    config = hr.PoolConfig(spec=SPEC, **{"slots_per_container": 2, "min_containers": 0, **numbers})
    return hr.SlotPool(cast(hr.Runtime, runtime), config)


async def until(true: Callable[[], bool]) -> None:
    """Wait until a condition holds; the time limit of the test is the deadline."""
    while not true():
        await asyncio.sleep(0.005)


async def fails(
    error: type[BaseException], work: Awaitable[object], match: str | None = None
) -> None:
    """Check that an awaitable raises this error."""
    with pytest.raises(error, match=match):
        await work


async def test_r6_leases_have_unique_slots_and_keep_their_task_ids() -> None:
    async with pool_of(PromisedRuntime()) as pool:
        slots = await asyncio.gather(*(pool.acquire(f"task-{n}") for n in range(10)))
        assert len({slot.slot_id for slot in slots}) == 10
        assert [slot.task_id for slot in slots] == [f"task-{n}" for n in range(10)]
        assert len({slot.container for slot in slots}) == 5


async def test_r6_waiters_are_served_in_order_and_a_cancelled_waiter_takes_no_slot() -> None:
    async with pool_of(PromisedRuntime(), max_containers=1) as pool:
        held = [await pool.acquire(), await pool.acquire()]
        served: list[str] = []

        async def wait(name: str) -> hr.Slot:
            slot = await pool.acquire(name)
            served.append(name)
            return slot

        waiting = []
        for name in "abcd":
            waiting.append(asyncio.create_task(wait(name)))
            await asyncio.sleep(0)
        waiting[1].cancel()
        for slot in held:
            await pool.release(slot)
        first, third = await waiting[0], await waiting[2]
        assert served == ["a", "c"]
        await pool.release(first)
        await pool.release(third)
        await pool.release(await waiting[3])
        await pool.settle()
        assert pool.status().free == 2
        assert pool.status().waiting == 0


async def test_r6_a_slot_granted_to_a_cancelled_waiter_goes_to_the_next() -> None:
    async with pool_of(
        PromisedRuntime(), max_containers=1, slots_per_container=1, reset="clean"
    ) as pool:
        held = await pool.acquire("holder")
        first = asyncio.create_task(pool.acquire("first"))
        second = asyncio.create_task(pool.acquire("second"))
        await asyncio.sleep(0.01)
        serve = pool._queue.serve

        def serve_and_cancel(slot: hr.Slot) -> None:
            serve(slot)
            pool._queue.serve = serve  # type: ignore[method-assign]
            first.cancel()

        pool._queue.serve = serve_and_cancel  # type: ignore[method-assign]
        await pool.release(held)
        assert (await second).task_id == "second"
        with pytest.raises(asyncio.CancelledError):
            await first
        assert pool.status().leased == 1


async def test_a_cancelled_waiter_is_skipped_at_once() -> None:
    async with pool_of(PromisedRuntime(), slots_per_container=1, max_containers=1) as pool:
        held = await pool.acquire("a")
        gone, stays = (asyncio.create_task(pool.acquire("a")) for _ in range(2))
        await until(lambda: pool.status().waiting == 2)
        gone.cancel()  # it is cancelled before its turn, when no slot is free yet
        await pool.release(held, reset_workspace=False)
        assert (await stays).task_id == "a"
        assert gone.cancelled()


async def test_a_cancelled_batch_starts_no_further_call() -> None:
    begun: list[str] = []

    async def execute(
        slot: hr.Slot, tool: str, args: Mapping[str, Any], timeout_s: float | None
    ) -> Any:
        begun.append(tool)
        try:
            await asyncio.sleep(3600 if tool == "first" else 0)
        finally:
            raise RuntimeError("the call was not ended well")

    async with pool_of(PromisedRuntime()) as pool:
        slot = await pool.acquire()
        task = asyncio.create_task(run_batch([(slot, "first", {}), (slot, "second", {})], execute))
        await until(lambda: bool(begun))
        task.cancel()
        await fails(asyncio.CancelledError, task)
    assert begun == ["first"]


async def test_r6_w18_the_deadline_of_an_acquire_is_kept_and_the_error_describes_the_pool() -> None:
    async with pool_of(PromisedRuntime(), max_containers=1) as pool:
        await pool.acquire()
        await pool.acquire()
        await fails(
            SlotTimeoutError,
            pool.acquire("late", timeout_s=0.05),
            "2 leased, 0 other acquires waiting, at most 1 containers in use",
        )
        assert pool.status().waiting == 0


@pytest.mark.parametrize("time", ["5", -1, float("nan"), float("inf"), 10**400, True, [1]])
async def test_r6_an_acquire_with_an_invalid_timeout_is_rejected_and_does_not_wait(
    time: Any,
) -> None:
    """A rejected acquire that stayed in the queue would get the next slot and never release it."""

    async with pool_of(PromisedRuntime(), max_containers=1) as pool:
        await fails(SpecError, pool.acquire(timeout_s=time), "a positive number of seconds")
        held = [await pool.acquire(), await pool.acquire()]
        await fails(SpecError, pool.acquire(timeout_s=time), "a positive number of seconds")
        await fails(SlotTimeoutError, pool.acquire(timeout_s=0), "2 leased")
        for slot in held:
            await pool.release(slot)
        await pool.settle()
        assert (pool.status().leased, pool.status().free, pool.status().waiting) == (0, 2, 0)


async def test_w4_a_handle_is_valid_for_one_lease_only() -> None:
    runtime = PromisedRuntime()
    async with pool_of(runtime, max_containers=1) as pool, pool_of(runtime) as other:
        old = await pool.acquire("first")
        await pool.release(old)
        await fails(StaleLeaseError, pool.release(old))
        await pool.settle()
        new = await pool.acquire("second")
        assert (new.slot_id, new.generation) == (old.slot_id, old.generation + 1)
        await fails(StaleLeaseError, pool.execute(old, "bash", {"command": "true"}))
        await fails(StaleLeaseError, pool.release(old))
        await fails(StaleLeaseError, pool.release(attrs.evolve(new, task_id="thief")))
        await fails(StaleLeaseError, other.release(new))
        await fails(StaleLeaseError, pool.release(cast(hr.Slot, new.slot_id)))
        assert pool.status().leased == 1
        await pool.release(new)


async def test_r13_w3_a_container_that_ends_loses_its_leases_and_is_replaced() -> None:
    runtime = PromisedRuntime()
    async with pool_of(runtime, max_containers=2) as pool:
        doomed = [await pool.acquire("a"), await pool.acquire("b")]
        safe = await pool.acquire("c")
        running = asyncio.create_task(pool.lease_of(doomed[0]).exec(["sleep", "20"]))
        await asyncio.sleep(0.02)
        runtime.containers[0].end()
        await fails(SandboxLostError, running)
        await fails(
            SandboxLostError,
            pool.execute(doomed[1], "bash", {"command": "true"}),
            "acquire another",
        )
        assert (await pool.lease_of(safe).exec(["true"])).exit_code == 0
        for slot in doomed:
            await pool.release(slot)
            await fails(StaleLeaseError, pool.release(slot))
        again = [await pool.acquire() for _ in range(3)]
        assert doomed[0].container not in {slot.container for slot in again}
        assert pool.status().lost == 1


async def test_r13_the_holder_of_a_container_that_the_watchdog_ended_gets_the_reason() -> None:
    runtime = PromisedRuntime()
    async with pool_of(runtime) as pool:
        slot = await pool.acquire()
        runtime.containers[0].end(
            watchdog_verdict="ended, because it used 2 bytes of limits.disk_bytes=1"
        )
        await until(lambda: pool.status().lost == 1)
        call = pool.execute(slot, "bash", {"command": "true"})
        await fails(SandboxLostError, call, r"used 2 bytes of limits\.disk_bytes=1")
        await pool.release(slot)


async def test_r11_a_slot_that_cannot_be_reset_is_quarantined_and_its_container_replaced() -> None:
    runtime = PromisedRuntime()
    async with pool_of(runtime, max_containers=2) as pool:
        spoilt, sibling = await pool.acquire(), await pool.acquire()
        runtime.containers[0].refuses = lambda args: "renew" in args
        await pool.release(spoilt)
        await pool.settle()
        assert pool.status().quarantined == 1
        assert (await pool.lease_of(sibling).exec(["true"])).exit_code == 0
        assert (await pool.acquire()).container != spoilt.container
        await pool.release(sibling)
        await until(lambda: runtime.containers[0].is_closed)


async def test_a_lease_past_its_timeout_expires() -> None:
    clock = SkippingClock()
    async with pool_of(PromisedRuntime(), lease_timeout_s=50) as pool:
        slot = await pool.acquire("slow")
        running = asyncio.create_task(pool.lease_of(slot).exec(["sleep", "1000"]))
        await clock.skip(49)
        assert not running.done()
        await clock.skip(2)
        await fails(StaleLeaseError, running, "expired after 50 s")
        await fails(StaleLeaseError, pool.release(slot))
        await pool.settle()
        assert pool.status().free == 2


@pytest.mark.parametrize("by_caller", [False, True])
async def test_the_end_of_a_lease_cancels_its_call_but_not_the_task_of_the_caller(
    by_caller: bool,
) -> None:
    """A call runs in its caller's task; only the caller's own cancellation may be seen outside the
    call.
    """

    async with pool_of(PromisedRuntime()) as pool:
        lease = pool.lease_of(await pool.acquire())
        seen: list[BaseException] = []

        async def caller() -> int:
            try:
                await lease.exec(["sleep", "1000"])
            except (StaleLeaseError, asyncio.CancelledError) as error:
                seen.append(error)
            task = asyncio.current_task()
            assert task is not None
            if not by_caller:
                await asyncio.sleep(0)
            return task.cancelling()

        task = asyncio.create_task(caller())
        await until(lambda: any(grant.running for grant in pool._grants))
        if by_caller:
            task.cancel()
        await pool.release(lease.slot)
        assert await task == int(by_caller)
        assert isinstance(seen[0], asyncio.CancelledError if by_caller else StaleLeaseError)


async def test_r11_stop_ends_waiting_acquires_running_calls_and_all_containers() -> None:
    runtime = PromisedRuntime(start_s=0.05)
    async with pool_of(runtime, max_containers=1) as pool:
        slot = await pool.acquire()
        await pool.acquire()
        waiting = asyncio.create_task(pool.acquire())
        running = asyncio.create_task(pool.lease_of(slot).exec(["sleep", "20"]))
        await asyncio.sleep(0.02)
        await asyncio.gather(pool.stop(), pool.stop())
        await fails(PoolClosedError, waiting)
        await fails(PoolClosedError, running)
        await fails(PoolClosedError, pool.acquire())
    assert runtime.containers
    assert runtime.open == []


async def test_r11_a_lease_block_releases_its_slot_after_an_exception_or_a_cancellation() -> None:
    async with pool_of(PromisedRuntime(), max_containers=1) as pool:

        async def failing() -> None:
            async with pool.lease("unlucky"):
                raise RuntimeError("on purpose")

        async def endless() -> None:
            async with pool.lease("cancelled") as lease:
                await lease.exec(["sleep", "100"])

        await fails(RuntimeError, failing())
        task = asyncio.create_task(endless())
        await asyncio.sleep(0.02)
        task.cancel()
        await fails(asyncio.CancelledError, task)
        await pool.settle()
        assert pool.status().free == 2


async def test_a_slot_released_without_reset_is_kept_for_its_task_unless_others_need_it() -> None:
    async with pool_of(PromisedRuntime(), max_containers=1) as pool:
        kept = await pool.acquire("mine")
        await pool.release(kept, reset_workspace=False)
        await fails(StaleLeaseError, pool.release(kept))
        other = await pool.acquire("other")
        assert other.slot_id != kept.slot_id
        again = await pool.acquire("mine")
        assert (again.slot_id, again.generation) == (kept.slot_id, 1)
        await pool.release(again, reset_workspace=False)
        third = await pool.acquire("third")
        assert (third.slot_id, third.generation) == (kept.slot_id, 2)


async def test_a_kept_slot_stays_kept_while_another_container_can_be_started() -> None:
    async with pool_of(
        PromisedRuntime(start_s=0.05), slots_per_container=1, max_containers=2
    ) as pool:
        kept = await pool.acquire("mine")
        await pool.release(kept, reset_workspace=False)
        other = await pool.acquire("other")
        assert other.container != kept.container
        again = await pool.acquire("mine")
        assert (again.slot_id, again.generation) == (kept.slot_id, 1)


async def test_a_kept_slot_is_reset_after_the_idle_timeout() -> None:
    clock = SkippingClock()
    async with pool_of(PromisedRuntime(), idle_timeout_s=60) as pool:
        await pool.release(await pool.acquire("mine"), reset_workspace=False)
        await clock.skip(30)
        assert pool.status().free == 1
        await clock.skip(31)
        await until(lambda: pool.status().free == 2)
        await clock.skip(61)
        await until(lambda: pool.status().containers == 0)


async def test_shared_containers_without_user_isolation_are_rejected() -> None:
    runtime = PromisedRuntime(users=False)
    await fails(
        SpecError,
        pool_of(runtime, slots_per_container=4).start(),
        "has no users to isolate slots",
    )
    async with pool_of(runtime, slots_per_container=None) as pool:
        assert (pool.status().slots_per_container, pool.status().isolation) == (1, "container")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"min_containers": 6}, "min_containers"),
        ({"max_containers": 0}, "max_containers"),
        ({"idle_timeout_s": float("nan")}, "idle_timeout_s"),
        ({"isolation": "none"}, "isolation"),
        ({"slots_per_container": 2, "reset": "replace"}, "reset"),
        ({"slots_per_container": 2, "isolation": "container"}, "slots_per_container"),
        ({"isolation": "container", "reset": "clean"}, "reset"),
        ({"name": "../x"}, "name"),
        ({"workspace_base": "slots"}, "workspace_base"),
    ],
)
def test_an_invalid_config_is_rejected_with_the_field_name(
    wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        hr.PoolConfig(spec=SPEC, **wrong)
    assert refusal.value.field == field


async def test_w17_a_slow_call_or_a_waiting_acquire_does_not_block_calls_and_releases() -> None:
    async with pool_of(PromisedRuntime(), max_containers=1) as pool:
        slow, quick = await pool.acquire("slow"), await pool.acquire("quick")
        sleeping = asyncio.create_task(pool.lease_of(slow).exec(["sleep", "20"]))
        waiting = asyncio.create_task(pool.acquire("third"))
        await asyncio.sleep(0.01)
        assert (await pool.lease_of(quick).exec(["true"])).exit_code == 0
        assert not sleeping.done()
        await pool.release(quick)
        assert (await waiting).slot_id == quick.slot_id
        await pool.release(slow)
        await fails(StaleLeaseError, sleeping, "was released")


async def test_pool_events_are_logged_with_fixed_names(caplog: pytest.LogCaptureFixture) -> None:
    runtime = PromisedRuntime()
    with caplog.at_level("DEBUG", logger="hyperruntime"):
        async with pool_of(runtime, min_containers=1) as pool:
            spoilt, lost = await pool.acquire(), await pool.acquire()
            runtime.containers[0].refuses = lambda args: "renew" in args
            await pool.release(spoilt)
            await pool.settle()
            runtime.containers[0].end()
            await until(lambda: pool.status().lost == 1)
            await pool.release(lost)
            await until(lambda: pool.status().free > 0)
            pool.shrink()
            await until(lambda: not pool.status().containers and len(runtime.open) == 0)
    events = {record.getMessage().partition(" pool=")[0] for record in caplog.records}
    containers = {f"container {what}" for what in ("started", "draining", "lost", "recycled")}
    assert {*containers, "pool started", "pool stopped"} <= events
    assert {f"slot {what}" for what in ("acquired", "released", "quarantined")} <= events
