"""Several pools in one object: one for each profile, and one for each spec that is asked for.

A profile's pool starts with its first use. A slot names its pool, so calls with a slot need no
profile.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs

from hyperruntime.errors import PoolClosedError, SpecError, StaleLeaseError, unknown_name
from hyperruntime.layers.snapshots.snapshot import Snapshot
from hyperruntime.logs import get_logger
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool.tools import run_batch
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.pool_values.profiles import Profiles
from hyperruntime.pool_values.results import ExecutionResult, PoolStatus, Request, Slot
from hyperruntime.runtime import Runtime
from hyperruntime.sandbox import Pool, Sandbox
from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)

_DIGITS = 12


class PoolManager:
    """Manages several pools; ``async with PoolManager(runtime, profiles) as pools:`` stops them at
    the end.

    Attributes:
        default_profile: the profile to use if the caller names none.
        max_spec_pools: how many unused pools of :meth:`pool_for` may keep their containers.

    Example:
        >>> async def main():
        ...     profiles = hr.Profiles.of(hr.PoolConfig(name="small", spec=spec))
        ...     async with hr.PoolManager(runtime, profiles) as pools:
        ...         async with pools.lease("task-1", "small") as lease:
        ...             return lease.slot.profile
        >>> asyncio.run(main())
        'small'
    """

    def __init__(
        self,
        runtime: Runtime | Callable[[PoolConfig], Pool],
        profiles: Profiles,
        *,
        max_spec_pools: int = 16,
    ) -> None:
        """Store the configuration; nothing starts yet.

        Args:
            runtime: starts the containers; it must stay open as long as the pools. Or a function
                that makes a pool, such as ``functools.partial(hyperruntime.ClusterPool, cluster)``.
            profiles: the configuration of each pool.
            max_spec_pools: how many unused pools of :meth:`pool_for` may keep their containers.

        Raises:
            SpecError: ``max_spec_pools`` is less than 1.
        """
        if max_spec_pools < 1:
            raise SpecError("max_spec_pools", max_spec_pools, "a whole number, at least 1")
        self.default_profile = profiles.default
        self.max_spec_pools = max_spec_pools
        self._make = runtime if callable(runtime) else partial(SlotPool, runtime)
        self._configs = dict(profiles.configs)
        self._pools: dict[str, Pool] = {}
        self._starting: dict[str, asyncio.Task[Pool]] = {}
        self._spec_names: dict[str, None] = {}  # in order of last use
        self._closed = False

    async def __aenter__(self) -> PoolManager:
        """Return the manager; pools start with their first use."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all pools."""
        await self.stop()

    async def start(self, *profiles: str) -> None:
        """Start the pools of these profiles now, all at the same time.

        Raises:
            SpecError: a profile is unknown.
            HyperRuntimeError: a pool cannot be started.
        """
        await asyncio.gather(*(self.pool(name) for name in profiles))

    async def stop(self) -> None:
        """Stop all pools; may be called again."""
        self._closed = True
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        await asyncio.gather(*(pool.stop() for pool in self._pools.values()))

    def list_profiles(self) -> dict[str, PoolConfig]:
        """Return the profiles by name."""
        return dict(self._configs)

    async def pool(self, profile: str | None = None) -> Pool:
        """Return the pool of a profile, started.

        Raises:
            SpecError: the profile is unknown.
            PoolClosedError: the pools were stopped.
            HyperRuntimeError: the pool cannot be started; the next call tries again.
        """
        name = self.default_profile if profile is None else profile
        if name not in self._configs:
            raise SpecError("profile", name, unknown_name("profile", str(name), self._configs))
        return await self._started(self._configs[name])

    async def pool_for(self, spec: ContainerSpec) -> Pool:
        """Return the pool of a spec, with the settings of the default profile but no minimum of
        containers.

        The number of such pools is not limited. Of the unused pools, only the last
        ``max_spec_pools`` keep their containers.

        Raises:
            PoolClosedError: the pools were stopped.
            HyperRuntimeError: the pool cannot be started; the next call tries again.
        """
        text = repr((spec, tuple(spec.env.items())))  # a spec shows no values of its environment
        digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:_DIGITS]
        template = self._configs[self.default_profile]
        config = attrs.evolve(template, spec=spec, name=f"spec-{digest}", min_containers=0)
        pool = await self._started(config)
        self._spec_names.pop(config.name, None)
        self._spec_names[config.name] = None
        unused = [name for name in self._spec_names if self._pools[name].status().is_unused]
        for name in unused[: max(0, len(unused) - self.max_spec_pools)]:
            self._pools[name].shrink()
        return pool

    async def acquire(
        self,
        task_id: str | None = None,
        profile: str | None = None,
        *,
        spec: ContainerSpec | None = None,
        timeout_s: float | None = None,
        base: Snapshot | str | None = None,
    ) -> Slot:
        """Lease a slot; see :meth:`SlotPool.acquire` for the other arguments and errors.

        Args:
            profile: name of the profile; None means the default profile.
            spec: lease a slot in a container of this spec instead; ``profile`` is then ignored.
        """
        pool = await self.pool(profile) if spec is None else await self.pool_for(spec)
        return await pool.acquire(task_id, timeout_s=timeout_s, base=base)

    async def release(self, slot: Slot, *, reset_workspace: bool = True) -> None:
        """Release a slot; see :meth:`SlotPool.release`."""
        await self.pool_of(slot).release(slot, reset_workspace=reset_workspace)

    @asynccontextmanager
    async def lease(
        self,
        task_id: str | None = None,
        profile: str | None = None,
        *,
        spec: ContainerSpec | None = None,
        timeout_s: float | None = None,
        base: Snapshot | str | None = None,
    ) -> AsyncIterator[Sandbox]:
        """Lease a slot for a block; see :meth:`acquire` and :meth:`SlotPool.lease`."""
        pool = await self.pool(profile) if spec is None else await self.pool_for(spec)
        async with pool.lease(task_id, timeout_s=timeout_s, base=base) as lease:
            yield lease

    def lease_of(self, slot: Slot) -> Sandbox:
        """Return the lease of a slot handle, bound to its pool; see :meth:`SlotPool.lease_of`."""
        return self.pool_of(slot).lease_of(slot)

    def pool_of(self, slot: Slot) -> Pool:
        """Return the pool that a slot belongs to.

        Raises:
            StaleLeaseError: the slot does not belong to a pool of this manager.
        """
        pool = self._pools.get(slot.profile)
        if pool is None:
            raise StaleLeaseError(
                f"slot {slot.slot_id} does not belong to this PoolManager; use what acquire() "
                "returned"
            )
        return pool

    async def execute(
        self, slot: Slot, tool: str, args: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> ExecutionResult:
        """Call a tool in a slot; see :meth:`SlotPool.execute`."""
        return await self.pool_of(slot).execute(slot, tool, args, timeout_s=timeout_s)

    async def execute_batch(
        self, requests: Sequence[Request], *, timeout_s: float | None = None
    ) -> list[ExecutionResult]:
        """Call many tools in slots of any profiles; see :meth:`SlotPool.execute_batch`."""
        return await run_batch(requests, self.execute, timeout_s=timeout_s)

    def status(self) -> dict[str, PoolStatus]:
        """Return the status of each started pool, by name."""
        return {name: pool.status() for name, pool in self._pools.items()}

    async def _started(self, config: PoolConfig) -> Pool:
        if self._closed:
            raise PoolClosedError("the pools were stopped")
        if (pool := self._pools.get(config.name)) is not None:
            return pool
        if (task := self._starting.get(config.name)) is None:
            task = asyncio.get_running_loop().create_task(self._start(config))
            self._starting[config.name] = task
            task.add_done_callback(lambda _: self._starting.pop(config.name))
        return await asyncio.shield(task)

    async def _start(self, config: PoolConfig) -> Pool:
        pool = self._make(config)
        await pool.start()
        self._pools[config.name] = pool
        return pool
