"""Slots out of pools, one pool for each kind of container; imports the pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import attrs

from hyperruntime.logs import get_logger
from hyperruntime.pool.config import PoolConfig
from hyperruntime.pool.pool import SlotPool
from hyperruntime.rollout.options import PoolOptions
from hyperruntime.spec import ContainerSpec

if TYPE_CHECKING:
    from hyperruntime.pool.lease import Lease
    from hyperruntime.runtime import Runtime

log = get_logger(__name__)
_POOLS = 16


@attrs.define
class _Kept:
    """A pool of one kind of container.

    Attributes:
        start: starts it, once.
        used: how many leases are held or waited for.
    """

    start: asyncio.Task[SlotPool]
    used: int = 0


class PooledSlots:
    """Slots for agents, and containers for verification; ``async with`` ends all of them.

    At most some pools are kept; of those that nobody uses, the one that was used longest ago goes first.
    """

    def __init__(self, runtime: Runtime, options: PoolOptions, parallel: int) -> None:
        """Describe it; nothing starts yet.

        Args:
            runtime: where containers are. options: of the slots for agents. parallel: trajectories at once.
        """
        self._runtime, self._options, self._parallel = runtime, options, parallel
        self._pools: dict[tuple[str, bool], _Kept] = {}

    @asynccontextmanager
    async def lease(self, spec: ContainerSpec, task_id: str) -> AsyncIterator[Lease]:
        """Return a slot to work in."""
        async with self._leased(spec, task_id, fresh=False) as lease:
            yield lease

    @asynccontextmanager
    async def fresh(self, spec: ContainerSpec, task_id: str) -> AsyncIterator[Lease]:
        """Return a slot in a container that nobody has used, and that nobody uses after it."""
        async with self._leased(spec, task_id, fresh=True) as lease:
            yield lease

    async def end_processes(self, lease: Lease) -> None:
        """End all that runs in a slot; its files stay."""
        ending = getattr(lease, "end_processes", None)
        if ending is not None:
            await ending()

    async def __aenter__(self) -> PooledSlots:
        """Begin."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all pools, whatever happened."""
        pools, self._pools = list(self._pools.values()), {}
        await asyncio.shield(asyncio.gather(*(_stop(pool) for pool in pools)))

    @asynccontextmanager
    async def _leased(self, spec: ContainerSpec, task_id: str, *, fresh: bool) -> AsyncIterator[Lease]:
        kept = self._kept(spec, fresh=fresh)
        kept.used += 1
        try:
            pool = await asyncio.shield(kept.start)
            async with pool.lease(task_id) as lease:
                yield lease
        finally:
            kept.used -= 1

    def _kept(self, spec: ContainerSpec, *, fresh: bool) -> _Kept:
        """Return the pool of a kind of container, started if there is none."""
        key = (repr(spec), fresh)
        kept = self._pools.pop(key, None)
        if kept is None or _failed(kept):
            kept = _Kept(asyncio.get_running_loop().create_task(self._start(spec, fresh=fresh)))
        self._pools[key] = kept  # the newest is last
        for other in [key for key, pool in self._pools.items() if pool.used == 0 and pool is not kept]:
            if len(self._pools) <= _POOLS:
                break
            stopped = self._pools.pop(other)
            task = asyncio.get_running_loop().create_task(_stop(stopped))
            task.add_done_callback(lambda done: done.exception())
        return kept

    async def _start(self, spec: ContainerSpec, *, fresh: bool) -> SlotPool:
        options = self._options
        slots = 1 if fresh else options.slots_per_container
        most = options.max_containers or -(-self._parallel // (slots or 1))
        pool = SlotPool(
            self._runtime,
            PoolConfig(
                spec=spec,
                name="verify" if fresh else "agents",
                slots_per_container=slots,
                reset="replace" if fresh else "auto",
                min_containers=0 if fresh else min(options.min_containers, most),
                max_containers=most,
                acquire_timeout_s=options.acquire_timeout_s,
            ),
        )
        await pool.start()
        return pool


def _failed(kept: _Kept) -> bool:
    return kept.start.done() and (kept.start.cancelled() or kept.start.exception() is not None)


async def _stop(kept: _Kept) -> None:
    try:
        pool = await kept.start
    except Exception as error:  # noqa: BLE001 - it never started, and whoever wanted it was told
        log.debug("pool never started", error=str(error))
        return
    await pool.stop()
