"""Pools that the environments of one process share: one for each engine and container spec."""

from __future__ import annotations

import os
import threading

from hyperruntime.pool.sync import SyncPool
from hyperruntime.pool.values.config import PoolConfig
from hyperruntime.runtime import Runtime, open_runtime
from hyperruntime.spec import ContainerSpec

SHARED_IDLE_TIMEOUT_S = 60.0
MAX_CONTAINERS = 1000


_lock = threading.Lock()
_pools: dict[tuple[int, str | None, str], tuple[SyncPool, Runtime]] = {}  # by process, engine and spec


def shared_pool(runtime: str | None, spec: ContainerSpec) -> SyncPool:
    """Return the shared pool for an engine and a container spec; created on first use, with one slot per container.

    Idle containers are ended after a minute; the pool itself ends with the process.

    Args:
        runtime: the engine's name; None for ``HYPERRUNTIME_RUNTIME``, else the first engine that works.
        spec: the containers of the pool.

    Raises:
        HyperRuntimeError: the engine or the pool cannot be opened.
    """
    key = os.getpid(), runtime, repr(spec)
    with _lock:
        if key in _pools:
            return _pools[key][0]
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
        _pools[key] = pool, opened
        return pool


def close_shared_pools() -> None:
    """End all shared pools of this process and everything that runs in them; otherwise they end with the process."""
    with _lock:
        ours = [opened for (pid, _, _), opened in _pools.items() if pid == os.getpid()]
        _pools.clear()
    for pool, runtime in ours:
        pool.close()
        runtime.close()
