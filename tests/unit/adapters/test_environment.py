"""An environment that the program drops: its slot is released, and nobody waits for that. The
containers are fakes.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import cast

import pytest

import hyperruntime as hr
from hyperruntime.adapters.environment import HyperEnvironment
from hyperruntime.pool.sync import SyncPool
from tests.doubles.slots import PromisedRuntime


@pytest.fixture
def pool() -> Iterator[SyncPool]:
    """Return a pool with one slot."""
    spec = hr.ContainerSpec(image="promised")
    config = hr.PoolConfig(spec=spec, slots_per_container=1, min_containers=0, max_containers=1)
    with SyncPool(cast(hr.Runtime, PromisedRuntime()), config) as opened:
        yield opened


def test_a_dropped_environment_releases_its_slot(pool: SyncPool) -> None:
    for _ in range(3):
        environment = HyperEnvironment(pool=pool)
        del environment
    assert pool.acquire(timeout_s=60).task_id


def test_dropping_an_environment_does_not_wait_for_the_pool(pool: SyncPool) -> None:
    environment, go_on = HyperEnvironment(pool=pool), threading.Event()

    async def hang() -> None:
        go_on.wait()  # the pool's event loop can do nothing else

    hanging = pool.submit(hang())
    del environment
    assert not hanging.done()
    go_on.set()
    assert pool.acquire(timeout_s=60).task_id


def test_the_garbage_collector_may_find_it_in_the_thread_of_the_pool(pool: SyncPool) -> None:
    environment = HyperEnvironment(pool=pool)
    vars(environment)["itself"] = environment
    del environment

    async def collect() -> None:
        gc.collect()

    pool.submit(collect()).result(timeout=60)
    assert pool.acquire(timeout_s=60).task_id


def test_an_environment_may_be_dropped_after_its_cleanup_or_the_end_of_its_pool(
    pool: SyncPool,
) -> None:
    first = HyperEnvironment(pool=pool)
    first.cleanup()
    second = HyperEnvironment(pool=pool)
    del first
    assert second.container.startswith("promised-")
    assert pool.status().leased == 1
    pool.close()
    del second
    gc.collect()
