"""Benchmarks of slots: concurrent calls, throughput, leases, and the cost of a killed container or
owner.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil

import hyperruntime as hr
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.runtime import Runtime
from tests.bench.measure import Row, from_threads, in_turn, longest_gap, under
from tests.bench.rivals import kill_container, rivals

SLOTS, EXECS_EACH = 100, 30
TICK_S = 0.05
CAPACITY_ROUNDS = 5
_ROUNDS = 3


def pool_of(
    runtime: Runtime, image: str, slots: int, containers: int = 0, **options: Any
) -> SlotPool:
    """Return a pool of ``slots`` warm slots: ten per container if the engine has users, else one
    per container.
    """
    each = 10 if runtime.info.users else 1
    count = containers or -(-slots // each)
    config = PoolConfig(
        spec=hr.ContainerSpec(image=image),
        **{"min_containers": count, "max_containers": count, "max_lifetime_s": None, **options},
    )
    return SlotPool(runtime, config)


def sleep_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure `sleep 1` in three slots at once beside a ticker, and one after another."""
    return asyncio.run(_sleep_rows(runtime, image))


async def _sleep_rows(runtime: Runtime, image: str) -> list[Row]:
    async with pool_of(runtime, image, 3) as pool:
        slots = [await pool.acquire(f"t{n}") for n in range(3)]
        batch = [(slot, "bash", {"command": "sleep 1"}) for slot in slots]
        runs = [await longest_gap(pool.execute_batch(batch), TICK_S) for _ in range(3)]
        begin = time.perf_counter()
        for request in batch:
            await pool.execute_batch([request])
        alone = time.perf_counter() - begin
    together = statistics.median(took for took, _ in runs)
    gap = max(gap for _, gap in runs)
    return [
        Row(
            what="three `sleep 1` in three slots, one batch",
            value=together,
            unit="s",
            compared_to=f"one after another: {alone:.2f} s",
            ratio=together / alone,
            wanted="under 1.5 s",
            holds=together < 1.5,
        ),
        Row(
            what="longest gap of a 50 ms ticker on the same loop",
            value=gap * 1e3,
            unit="ms",
            wanted="it keeps ticking: under 250 ms",
            holds=gap < 0.25,
        ),
    ]


def throughput_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure `true` in 100 slots from one event loop, against threads of bare processes and the
    engine's own exec.
    """
    rate = asyncio.run(_throughput(runtime, image))
    bare = from_threads(lambda: subprocess.run(["true"], check=True), 50, 20)
    with (
        runtime.container(hr.ContainerSpec(image=image)) as container,
        rivals(runtime, container, image) as others,
    ):
        slow = in_turn({other.name: other.run for other in others}, rounds=5)
    name, took = min(slow.items(), key=lambda item: item[1])
    return [
        Row(
            what=f"execs in {SLOTS} slots from one event loop",
            value=rate,
            unit="execs/s",
            compared_to=f"bare subprocess.run from 50 threads: {bare:.0f}/s",
            ratio=rate / bare,
        ),
        Row(
            what=f"the same beside {name}, one after another",
            value=rate,
            unit="execs/s",
            compared_to=f"{1 / took:.0f}/s",
            ratio=rate * took,
        ),
    ]


async def _throughput(runtime: Runtime, image: str) -> float:
    async with pool_of(runtime, image, SLOTS) as pool:
        leases = [pool.lease_of(await pool.acquire(f"t{n}")) for n in range(SLOTS)]

        async def work(lease: Any, times: int) -> None:
            for _ in range(times):
                result = await lease.exec(["true"])
                if result.exit_code:
                    raise AssertionError(result)

        await asyncio.gather(*(work(lease, 2) for lease in leases))
        begin = time.perf_counter()
        await asyncio.gather(*(work(lease, EXECS_EACH) for lease in leases))
        return SLOTS * EXECS_EACH / (time.perf_counter() - begin)


def lease_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure an acquire from a warm pool, and the time until a released slot is clean."""
    return asyncio.run(_lease_rows(runtime, image))


async def _lease_rows(runtime: Runtime, image: str) -> list[Row]:
    acquires, releases, resets = [], [], []
    async with pool_of(runtime, image, 2, containers=2) as pool:
        for number in range(50):
            slot, took = await timed(pool.acquire(f"t{number}"))
            acquires.append(took)
            await pool.execute(
                slot,
                "bash",
                {"command": "mkdir -p a/.b; echo x >a/.b/..c; sleep 100 & echo y >/tmp/z"},
            )
            releases.append((await timed(pool.release(slot)))[1])
            resets.append((await timed(pool.settle()))[1])
            while not pool.status().free:
                await asyncio.sleep(0.01)
    acquire, worst = statistics.median(acquires), max(acquires)
    rows = [
        under(
            "acquire from a warm pool", acquire * 1e3, "ms", 5, f"worst of 50: {worst * 1e3:.2f} ms"
        ),
        Row(
            what="release, as its holder waits for it",
            value=statistics.median(releases) * 1e3,
            unit="ms",
        ),
    ]
    # otherwise the container is replaced, and `settle` does not wait for that
    if runtime.info.users:
        what = "until a slot with files and processes is as new (cleaned and verified)"
        rows.append(Row(what=what, value=statistics.median(resets) * 1e3, unit="ms"))
    return rows


async def timed(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """Return the result of some work, and its seconds."""
    begin = time.perf_counter()
    return await work, time.perf_counter() - begin


def loss_rows(runtime: Runtime, image: str) -> list[Row]:
    """Kill a container in the middle of a batch; measure which requests fail and when all slots are
    back.
    """
    rounds = [asyncio.run(_lose_one(runtime, image)) for _ in range(CAPACITY_ROUNDS)]
    failed, expected, late = (
        rounds[-1][0],
        rounds[-1][1],
        statistics.median(seconds for *_, seconds in rounds),
    )
    exact = all(failed == expected for failed, expected, _ in rounds)
    return [
        Row(
            what="requests that fail when a container is killed in the middle of a batch",
            value=failed,
            unit="requests",
            compared_to=f"in that container: {expected}",
            wanted="only its own",
            holds=exact,
        ),
        Row(
            what="until the pool's capacity is back after a kill",
            value=late,
            unit="s",
            compared_to=f"worst of {CAPACITY_ROUNDS}: {max(seconds for *_, seconds in rounds):.2f} s",
            wanted="within 5 s",
            holds=max(seconds for *_, seconds in rounds) < 5,
        ),
    ]


async def _lose_one(runtime: Runtime, image: str) -> tuple[int, int, float]:
    count = 3 if runtime.info.users else 6
    async with pool_of(runtime, image, 0, containers=count) as pool:
        slots = [await pool.acquire(f"t{n}") for n in range(pool.status().total_slots)]
        victim = slots[0].container
        batch = asyncio.create_task(
            pool.execute_batch([(slot, "bash", {"command": "sleep 1"}) for slot in slots])
        )
        await asyncio.sleep(0.4)
        begin = time.perf_counter()
        await asyncio.to_thread(kill_container, runtime, victim)
        results = await batch
        for slot in slots:
            if slot.container == victim:
                await pool.release(slot)
        while (status := pool.status()).total_slots < len(slots) or status.free < expected_free(
            slots, victim
        ):
            await asyncio.sleep(0.01)
        back = time.perf_counter() - begin
    return sum(not result.success for result in results), expected_free(slots, victim), back


def expected_free(slots: list[hr.Slot], container: str) -> int:
    """Return the number of slots in a container."""
    return sum(slot.container == container for slot in slots)


def cycle_rows(runtime: Runtime, image: str, cycles: int) -> list[Row]:
    """Acquire, run and release many times, and check that nothing grows."""
    return asyncio.run(_cycle_rows(runtime, image, cycles))


async def _cycle_rows(runtime: Runtime, image: str, cycles: int) -> list[Row]:
    async with pool_of(runtime, image, 20 if runtime.info.users else 4) as pool:
        for _ in range(3):
            await _burst(pool)
        await _cycle(pool, min(cycles, 300))
        after = await _footprint(runtime, pool)
        grown, small, took, rounds = dict[str, int](), 0, 0.0, 0
        # what grew in each round: one more lane, or a process that is just ending, is growth in one
        # only
        leaks = {""}
        while leaks and rounds < _ROUNDS:
            before, begin = after, time.perf_counter()
            await _cycle(pool, cycles)
            took, rounds = took or time.perf_counter() - begin, rounds + 1
            after = await _footprint(runtime, pool)
            grown = {name: after[name] - before[name] for name in before}
            small += grown.pop("MiB of this process")
            grew = {name for name, number in grown.items() if number > 0}
            leaks = grew if rounds == 1 else leaks & grew
    text = ", ".join(f"{name} {number:+d}" for name, number in grown.items())
    text += f" in round {rounds} of at most {_ROUNDS}" if rounds > 1 else ""
    return [
        Row(
            what=f"acquire, exec and release, {cycles:,} times",
            value=cycles / took,
            unit="cycles/s",
            compared_to=f"grown: {text}",
            wanted="nothing grows each time",
            holds=not leaks,
        ),
        under("memory growth over these", max(0, small), "MiB", 16),
    ]


async def _burst(pool: SlotPool) -> None:
    """Use and reset all slots at once, so that resources kept for this load do not count as growth
    later.
    """
    slots = [await pool.acquire(f"burst-{number}") for number in range(pool.status().total_slots)]
    await pool.execute_batch(
        [(slot, "bash", {"command": "sleep 50 & sleep 0.5"}) for slot in slots]
    )
    await asyncio.gather(*(pool.release(slot) for slot in slots))
    await pool.settle()


async def _cycle(pool: SlotPool, cycles: int) -> None:
    left = iter(range(cycles))

    async def work() -> None:
        for number in left:
            async with pool.lease(f"c{number}") as lease:
                result = await lease.exec(
                    ["sh", "-c", "echo x >f; sleep 50 & echo done"], timeout_s=30
                )
                if result.stdout != b"done\n":
                    raise AssertionError(result)

    await asyncio.gather(*(work() for _ in range(pool.status().total_slots)))
    await pool.settle()


async def _footprint(runtime: Runtime, pool: SlotPool) -> dict[str, int]:
    """Return the counts of all resources that must not grow, while nothing is leased."""
    us = psutil.Process()
    wanted = pool.config.max_containers
    while (status := pool.status()).starting or status.draining or status.containers < wanted:
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)  # until ended processes are reaped
    names = {owned.record.id for owned in runtime.containers() if owned.owner.pid == us.pid}
    private = Path(runtime._owner.private_dir)
    async with pool.lease("looks") as lease:
        inside = await lease.exec(
            ["sh", "-c", "ls /proc | grep -c '^[0-9]'; find / -xdev 2>/dev/null | wc -l"]
        )
    processes, files = (int(word) for word in inside.stdout.split())
    await pool.settle()
    gc.collect()
    return {
        "slots": status.total_slots,
        "containers": len(names),
        "processes inside": processes,
        "files inside": files,
        "processes": len(us.children(recursive=True)),
        "descriptors": us.num_fds(),
        "threads": us.num_threads(),
        "files": sum(len(found) for _, _, found in os.walk(private)),
        "MiB of this process": round(us.memory_info().rss / 2**20),
    }


OWNER = """
import asyncio, sys
import hyperruntime as hr
from tests.bench.slots import pool_of

async def own(runtime):
    async with pool_of(runtime, sys.argv[2], 20) as pool:
        slots = [await pool.acquire(f"t{n}") for n in range(20)]
        command = "setsid sleep 7391 & sleep 7392"
        running = asyncio.create_task(pool.execute_batch([(slot, "bash", {"command": command}) for slot in slots]))
        await asyncio.sleep(1)
        print("ready", flush=True)
        await running

with hr.open_runtime(sys.argv[1]) as runtime:
    asyncio.run(own(runtime))
"""


def owner_rows(runtime: Runtime, image: str) -> list[Row]:
    """Kill a pool's owner while all its slots work; measure when nothing of it is left."""
    took = [_kill_owner(runtime, image) for _ in range(3)]
    return [
        Row(
            what="until nothing is left of a pool of 20 slots whose owner was killed",
            value=statistics.median(took),
            unit="s",
            compared_to=f"worst of 3: {max(took):.2f} s",
            wanted="within 10 s",
            holds=max(took) < 10,
        )
    ]


def _kill_owner(runtime: Runtime, image: str) -> float:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, runtime.name, image], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise AssertionError("the owner did not start")
    process.kill()
    process.wait()
    process.stdout.close()
    begin = time.perf_counter()
    while _working() or any(owned.owner.pid == process.pid for owned in runtime.containers()):
        time.sleep(0.05)
        if time.perf_counter() - begin > 60:
            raise AssertionError("a killed owner left containers or processes")
    return time.perf_counter() - begin


def _working() -> bool:
    return any(
        process.info["cmdline"] in (["sleep", "7391"], ["sleep", "7392"])
        for process in psutil.process_iter(["cmdline"])
    )
