"""What a tool backend needs of pools: which there are, opening them, and what is told of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import attrs

from hyperruntime.pool.manager import PoolManager
from hyperruntime.pool.values.config import PoolConfig
from hyperruntime.pool.values.profiles import Profiles, load_profiles, parse_profile, profiles_from_environment
from hyperruntime.pool.values.result import ExecutionResult
from hyperruntime.pool.values.slot import Slot
from hyperruntime.pool.values.status import PoolStatus
from hyperruntime.runtime import open_runtime


class Pools(Protocol):
    """Named pools, as :class:`~hyperruntime.pool.manager.PoolManager` has them."""

    async def start(self, *profiles: str) -> None:
        """Start pools of these profiles."""
        ...

    async def acquire(self, task_id: str | None = None, profile: str | None = None) -> Slot:
        """Return a lease."""
        ...

    async def release(self, slot: Slot, *, reset_workspace: bool = True) -> None:
        """End a lease."""
        ...

    async def execute_batch(
        self, requests: Sequence[tuple[Slot, str, Mapping[str, Any]]], *, timeout_s: float | None = None
    ) -> list[ExecutionResult]:
        """Return results in the order of the requests."""
        ...

    def status(self) -> Mapping[str, PoolStatus]:
        """Return the state of each pool that was started."""
        ...


OpensPools = Callable[[], AbstractAsyncContextManager[Pools]]


@asynccontextmanager
async def open_pools(profiles: Profiles, runtime: str | None, app_name: str) -> AsyncIterator[PoolManager]:
    """Open an engine and pools on it for a block; nothing is left after it."""
    opened = await asyncio.to_thread(open_runtime, runtime, run_id=app_name)
    try:
        async with PoolManager(opened, profiles) as pools:
            yield pools
    finally:
        await asyncio.to_thread(opened.close)


def choose_profiles(
    profiles: Mapping[str, PoolConfig | Mapping[str, Any]] | None,
    profiles_file: str | os.PathLike[str] | None,
    default: str | None,
) -> Profiles:
    """Return the profiles that are given, else a file's, else the environment's.

    Raises:
        SpecError: one is malformed, or the default is none of them.
    """
    if profiles is not None:
        configs = {name: _config(name, value) for name, value in profiles.items()}
        return Profiles(configs=configs, default=default or next(iter(configs), "default"))
    found = profiles_from_environment(os.environ) if profiles_file is None else load_profiles(os.fspath(profiles_file))
    return found if default is None else Profiles(configs=found.configs, default=default)


def _config(name: str, value: PoolConfig | Mapping[str, Any]) -> PoolConfig:
    return attrs.evolve(value, name=name) if isinstance(value, PoolConfig) else parse_profile(name, value)


def pool_facts(status: PoolStatus | None) -> dict[str, Any]:
    """Return a pool's numbers by the names that programs read; of one that was not started, zeros."""
    status = status or PoolStatus(name="", state="new")
    return {
        "sandboxes": status.containers,
        "healthy_sandboxes": status.containers - status.draining,
        "max_sandboxes": status.max_containers,
        "total_slots": status.total_slots,
        "available_slots": status.free,
        "slots_per_sandbox": status.slots_per_container,
        "quarantined_slots": status.quarantined,
        "waiting": status.waiting,
        "isolation": status.isolation,
        "error": status.error,
    }


def profile_facts(config: PoolConfig) -> dict[str, Any]:
    """Return a profile as JSON values, without what its environment holds."""
    spec = config.spec
    names = ("slots_per_container", "min_containers", "max_containers")
    times = ("idle_timeout_s", "max_lifetime_s", "acquire_timeout_s", "lease_timeout_s")
    return {
        "image": spec.image,
        "network": spec.network,
        "gpus": list(spec.gpus) if isinstance(spec.gpus, tuple) else spec.gpus,
        "limits": attrs.asdict(spec.limits),
        "env": sorted(spec.env),
        **{name: getattr(config, name) for name in (*names, *times)},
    }
