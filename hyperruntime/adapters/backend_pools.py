"""The pools of a tool backend and their slots: open them, report their state."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs

from hyperruntime.pool.manager import PoolManager
from hyperruntime.pool.values.config import PoolConfig
from hyperruntime.pool.values.profiles import Profiles
from hyperruntime.pool.values.results import PoolStatus, Slot
from hyperruntime.runtime import open_runtime

OpensPools = Callable[[], AbstractAsyncContextManager[PoolManager]]


@asynccontextmanager
async def open_pools_of(
    profiles: Profiles, runtime: str | None, app_name: str
) -> AsyncIterator[PoolManager]:
    """Open a runtime and its pools for a block; all containers end with the block.

    Args:
        profiles: the configurations of the pools.
        runtime: the engine's name; None for ``HYPERRUNTIME_RUNTIME``, else the first engine that
            works.
        app_name: run id in the labels of the containers.
    """
    opened = await asyncio.to_thread(open_runtime, runtime, run_id=app_name)
    try:
        async with PoolManager(opened, profiles) as pools:
            yield pools
    finally:
        await asyncio.to_thread(opened.close)


def pool_facts(status: PoolStatus) -> dict[str, Any]:
    """Return a pool's status as JSON values, under the names that other programs use."""
    return {
        "sandboxes": status.containers,
        "healthy_sandboxes": status.containers - status.draining,
        "max_sandboxes": status.max_containers,
        "total_slots": status.total_slots,
        "available_slots": status.available,
        "slots_per_sandbox": status.slots_per_container,
        "quarantined_slots": status.quarantined,
        "waiting": status.waiting,
        "isolation": status.isolation,
        "error": status.error,
    }


def profile_facts(config: PoolConfig) -> dict[str, Any]:
    """Return a profile as JSON values, also under the names that other programs use; of ``env``
    only the names.
    """
    spec, limits = config.spec, config.spec.limits
    names = ("slots_per_container", "min_containers", "max_containers")
    times = ("idle_timeout_s", "max_lifetime_s", "acquire_timeout_s", "lease_timeout_s")
    gpus = list(spec.gpus) if isinstance(spec.gpus, tuple) else spec.gpus
    return {
        "image": spec.image,
        "network": spec.network,
        "gpu": gpus,
        "gpus": gpus,
        "cpu": limits.cpus,
        "memory": None if limits.memory_bytes is None else limits.memory_bytes // 1024**2,
        "limits": attrs.asdict(limits),
        "env": sorted(spec.env),
        "slots_per_sandbox": config.slots_per_container,
        "max_sandboxes": config.max_containers,
        **{name: getattr(config, name) for name in (*names, *times)},
    }


class SlotState(enum.Enum):
    """The state of a slot, as a tool backend reports it."""

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    EXECUTING = "executing"
    RELEASING = "releasing"
    ERROR = "error"


@attrs.define(eq=False, kw_only=True)
class BackendSlot:
    """A leased slot of a tool backend, with its state.

    The pool checks ``lease`` only, so changing this object cannot make a stale slot valid again.

    Attributes:
        lease: the pool's slot handle.
        running: number of the slot's requests that are running.
        ended: ``ACQUIRED`` while the slot is leased, then ``RELEASING``, ``AVAILABLE`` or
            ``ERROR``.
        metadata: the holder's own JSON values.
    """

    lease: Slot
    running: int = 0
    ended: SlotState = SlotState.ACQUIRED
    metadata: dict[str, Any] = attrs.field(factory=dict)

    @property
    def slot_id(self) -> str:
        """The slot's name, unique on this machine."""
        return self.lease.slot_id

    @property
    def alloc_id(self) -> str:
        """Name of the slot's container."""
        return self.lease.container

    @property
    def container_addr(self) -> str:
        """Name of the slot's container, in place of an address: the container has none."""
        return self.lease.container

    @property
    def workspace_dir(self) -> str:
        """Absolute path of the slot's directory in the container."""
        return self.lease.workspace

    @property
    def trajectory_id(self) -> str | None:
        """The trajectory that acquired the slot; None after its release."""
        return None if self.ended is SlotState.AVAILABLE else self.lease.task_id

    @property
    def state(self) -> SlotState:
        """The slot's state now."""
        if self.ended is SlotState.ACQUIRED and self.running:
            return SlotState.EXECUTING
        return self.ended

    @property
    def is_available(self) -> bool:
        """Whether the slot was released."""
        return self.state is SlotState.AVAILABLE

    @property
    def is_acquired(self) -> bool:
        """Whether the slot is leased and not being released."""
        return self.ended is SlotState.ACQUIRED

    def to_dict(self) -> dict[str, Any]:
        """Return the slot as JSON values."""
        return {
            "slot_id": self.slot_id,
            "alloc_id": self.alloc_id,
            "container_addr": self.container_addr,
            "workspace_dir": self.workspace_dir,
            "state": self.state.value,
            "trajectory_id": self.trajectory_id,
            "metadata": {
                **self.metadata,
                "profile": self.lease.profile,
                "generation": self.lease.generation,
            },
        }
