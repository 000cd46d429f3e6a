"""Sandbox slots from pools, one pool for each container spec."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import attrs

from hyperruntime.concurrency.blocking import RESETS, blocking
from hyperruntime.pool.manager import PoolManager
from hyperruntime.pool_values.config import DEFAULT_SLOTS, PoolConfig
from hyperruntime.pool_values.profiles import Profiles
from hyperruntime.rollout.environment import UnscoredEnvironmentBase
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.spec import ContainerSpec

if TYPE_CHECKING:
    from hyperruntime.layers.snapshots.snapshot import Snapshot
    from hyperruntime.runtime import Runtime
    from hyperruntime.sandbox import Sandbox


class PooledSlots:
    """Slots for agents, and containers for verification; ``async with`` stops all pools at the end.

    A container for verification has one slot. After one lease it is rolled back to the files of its
    image if the engine has snapshots, else replaced.

    Attributes:
        capacity: upper bound on concurrent agents of one spec; more would wait and time out.
    """

    def __init__(
        self, runtime: Runtime, options: RolloutOptions, environment: UnscoredEnvironmentBase
    ) -> None:
        """Configure the pools; no container starts yet.

        Args:
            runtime: where containers run.
            options: rollout options.
            environment: its ``slots_per_container`` applies unless the options set one; None there:
                the pool's default. Its ``image_workdir`` applies as well.
        """
        pool = options.pool
        slots = pool.slots_per_container or environment.slots_per_container
        most = pool.max_containers or -(-options.parallel // (slots or 1))
        self.capacity = most * (slots or (DEFAULT_SLOTS if runtime.info.users else 1))
        self._runtime = runtime
        self._unused: list[Snapshot] = []
        base = self._base = options.base_spec()
        agents = PoolConfig(
            spec=base,
            name="agents",
            slots_per_container=slots,
            min_containers=min(pool.min_containers, most),
            max_containers=most,
            acquire_timeout_s=pool.acquire_timeout_s,
            image_workdir=environment.image_workdir,
        )
        judges = attrs.evolve(
            agents,
            name="verify",
            slots_per_container=1,
            min_containers=0,
            max_containers=options.parallel,
            # a rollback goes on with the wall clock
            reset="auto" if base.limits.wall_s is None else "replace",
        )
        self._agents = PoolManager(runtime, Profiles.of(agents))
        self._judges = PoolManager(runtime, Profiles.of(judges))

    def lease(self, spec: ContainerSpec, task_id: str) -> AbstractAsyncContextManager[Sandbox]:
        """Sandbox a slot for an agent.

        Args:
            spec: container spec of the item.
            task_id: id of the trajectory.
        """
        return self._agents.lease(task_id, spec=None if spec == self._base else spec)

    def fresh(self, spec: ContainerSpec, task_id: str) -> AbstractAsyncContextManager[Sandbox]:
        """Sandbox a container with the files of its image and without processes of others.

        Args:
            spec: container spec.
            task_id: id of the lease.
        """
        return self._judges.lease(task_id, spec=spec)

    async def drop(self, *files: Snapshot) -> None:
        """Remove the files of snapshots, which no later lease gets; those that a slot still has are
        removed by a later call, or after the slots.
        """
        # images of an engine stay until its runtime is closed
        self._unused += (one for one in files if not one.is_image)
        # later ones need earlier ones
        left = sorted(self._unused, key=lambda one: -one.created)
        gone = await blocking(RESETS, lambda: set(filter(self._runtime.drop, left)))
        self._unused = [one for one in self._unused if one not in gone]

    async def __aenter__(self) -> PooledSlots:
        """Return the slots; pools start on first use."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all pools."""
        try:
            await self._agents.stop()
        finally:
            await self._judges.stop()
            await self.drop()
