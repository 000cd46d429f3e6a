"""Pools that environments of one process share: one for each engine and container, empty while nobody needs it."""

from __future__ import annotations

import os
import threading

from hyperruntime.pool.config import PoolConfig
from hyperruntime.pool.sync import SyncPool, open_pool
from hyperruntime.spec import ContainerSpec

SHARED_IDLE_TIMEOUT_S = 60.0
MAX_CONTAINERS = 1000
_lock = threading.Lock()
_pools: dict[tuple[int, str, ContainerSpec], SyncPool] = {}


def shared_pool(runtime: str, spec: ContainerSpec) -> SyncPool:
    """Return the pool of this process for an engine and a container; one slot in each container.

    Containers that nobody leases are ended after a minute; the pool itself ends with the process.
    """
    key = os.getpid(), runtime, spec
    with _lock:
        if key not in _pools:
            config = PoolConfig(
                spec=spec,
                slots_per_container=1,
                min_containers=0,
                max_containers=MAX_CONTAINERS,
                idle_timeout_s=SHARED_IDLE_TIMEOUT_S,
                max_lifetime_s=None,
            )
            _pools[key] = open_pool(config, runtime=runtime)
        return _pools[key]


def close_shared_pools() -> None:
    """End every shared pool of this process, with whatever still runs in it."""
    with _lock:
        pools = [pool for (pid, *_), pool in _pools.items() if pid == os.getpid()]
        _pools.clear()
    for pool in pools:
        pool.close()
