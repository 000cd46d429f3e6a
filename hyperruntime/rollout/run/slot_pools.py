"""Slots out of pools, one pool for each kind of container."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from hyperruntime.pool.manager import PoolManager
from hyperruntime.pool.values.config import DEFAULT_SLOTS, PoolConfig
from hyperruntime.pool.values.profiles import Profiles
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.spec import ContainerSpec

if TYPE_CHECKING:
    from hyperruntime.pool.lease import Lease
    from hyperruntime.runtime import Runtime

_AGENTS, _VERIFY = "agents", "verify"


class PooledSlots:
    """Slots for agents, and containers for verification; ``async with`` ends all of them.

    A container for verification is a slot's own, and is replaced after its one lease; the next one is started ahead.

    Attributes:
        capacity: how many slots of one kind there can be: more agents at once would only wait, and in vain in the end.
    """

    def __init__(self, runtime: Runtime, options: RolloutOptions, slots_per_container: int | None) -> None:
        """Describe it; nothing starts yet.

        Args:
            runtime: where containers are. options: of the run. slots_per_container: for agents.
        """
        pool = options.pool
        slots = slots_per_container
        most = pool.max_containers or -(-options.parallel // (slots or 1))
        self.capacity = most * (slots or (DEFAULT_SLOTS if runtime.info.users else 1))
        base = self._base = options.base_spec()
        config = PoolConfig(
            spec=base,
            name=_AGENTS,
            slots_per_container=slots,
            min_containers=min(pool.min_containers, most),
            max_containers=most,
            acquire_timeout_s=pool.acquire_timeout_s,
        )
        judges = PoolConfig(
            spec=base,
            name=_VERIFY,
            slots_per_container=1,
            reset="replace",
            min_containers=0,
            max_containers=options.parallel,
            acquire_timeout_s=pool.acquire_timeout_s,
        )
        self._agents = PoolManager(runtime, Profiles.of(config))
        self._judges = PoolManager(runtime, Profiles.of(judges))

    @asynccontextmanager
    async def lease(self, spec: ContainerSpec, task_id: str) -> AsyncIterator[Lease]:
        """Return a slot to work in."""
        agents = self._agents
        pool = await (agents.pool() if spec == self._base else agents.pool_for(spec))
        async with pool.lease(task_id) as lease:
            yield lease

    @asynccontextmanager
    async def fresh(self, spec: ContainerSpec, task_id: str) -> AsyncIterator[Lease]:
        """Return a slot in a container that nobody has used, and that nobody uses after it."""
        async with self._judges.lease(task_id, spec=spec) as lease:
            yield lease

    async def end_processes(self, lease: Lease) -> None:
        """End all that runs in a slot; its files stay."""
        await lease.end_processes()

    async def __aenter__(self) -> PooledSlots:
        """Begin."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all pools, whatever happened."""
        try:
            await self._agents.stop()
        finally:
            await self._judges.stop()
