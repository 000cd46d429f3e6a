"""Pools that the environments of one process share: one for each engine and container spec."""

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
    """Return the shared pool for an engine and a container spec; created on first use, with one slot per container.

    Idle containers are ended after a minute; the pool itself ends with the process.

    Args:
        runtime: the engine's name; None for ``HYPERRUNTIME_RUNTIME``, else the first engine that works.
        spec: the containers of the pool.

    Raises:
        HyperRuntimeError: the engine or the pool cannot be opened.
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
    """End all shared pools of this process and everything that runs in them; otherwise they end with the process."""
    with _lock:
        ours = [shared for shared in _pools if shared.pid == os.getpid()]
        _pools.clear()
    for shared in ours:
        shared.pool.close()
        shared.opened.close()
