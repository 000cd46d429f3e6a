"""Pools that environments of one process share: one for each engine and container, empty while nobody needs it."""

from __future__ import annotations

import os
import threading

import attrs

from hyperruntime.pool.sync import SyncPool
from hyperruntime.pool.values.config import PoolConfig
from hyperruntime.runtime import Runtime, open_runtime
from hyperruntime.spec import ContainerSpec

SHARED_IDLE_TIMEOUT_S = 60.0
MAX_CONTAINERS = 1000


@attrs.frozen
class _Shared:
    pid: int
    runtime: str | None
    spec: ContainerSpec
    pool: SyncPool
    opened: Runtime


_lock = threading.Lock()
_pools: list[_Shared] = []


def shared_pool(runtime: str | None, spec: ContainerSpec) -> SyncPool:
    """Return the pool of this process for an engine and a container; one slot in each container.

    Containers that nobody leases are ended after a minute; the pool itself ends with the process.
    """
    wanted = os.getpid(), runtime, spec
    with _lock:
        for shared in _pools:
            if (shared.pid, shared.runtime, shared.spec) == wanted:
                return shared.pool
        config = PoolConfig(
            spec=spec,
            slots_per_container=1,
            min_containers=0,
            max_containers=MAX_CONTAINERS,
            idle_timeout_s=SHARED_IDLE_TIMEOUT_S,
            max_lifetime_s=None,
        )
        opened = open_runtime(runtime)
        try:
            pool = SyncPool(opened, config)
        except BaseException:
            opened.close()
            raise
        _pools.append(_Shared(*wanted, pool, opened))
        return pool


def close_shared_pools() -> None:
    """End every shared pool of this process, with whatever still runs in it; without it they end with the process."""
    with _lock:
        ours = [shared for shared in _pools if shared.pid == os.getpid()]
        _pools.clear()
    for shared in ours:
        shared.pool.close()
        shared.opened.close()
