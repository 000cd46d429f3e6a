"""The pools of a tool backend: choose their profiles, open them, report their state."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs

from hyperruntime.pool.manager import PoolManager
from hyperruntime.pool.values.config import PoolConfig
from hyperruntime.pool.values.profiles import Profiles, load_profiles, parse_profile, profiles_from_environment
from hyperruntime.pool.values.status import PoolStatus
from hyperruntime.runtime import open_runtime

OpensPools = Callable[[], AbstractAsyncContextManager[PoolManager]]


@asynccontextmanager
async def open_pools(profiles: Profiles, runtime: str | None, app_name: str) -> AsyncIterator[PoolManager]:
    """Open a runtime and its pools for a block; all containers end with the block.

    Args:
        profiles: the configurations of the pools.
        runtime: the engine's name; None for ``HYPERRUNTIME_RUNTIME``, else the first engine that works.
        app_name: run id in the labels of the containers.
    """
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
    """Return the given profiles, else those of a file, else those of the environment.

    Args:
        profiles: profiles by name; tables have the keys of a profiles file.
        profiles_file: a TOML or YAML file.
        default: name of the default profile; None for the source's own default.

    Raises:
        SpecError: a profile is malformed, or the default is not one of the profiles.
    """
    if profiles is not None:
        configs = {name: _config(name, value) for name, value in profiles.items()}
        return Profiles(configs=configs, default=default or next(iter(configs), "default"))
    found = profiles_from_environment(os.environ) if profiles_file is None else load_profiles(os.fspath(profiles_file))
    return found if default is None else Profiles(configs=found.configs, default=default)


def _config(name: str, value: PoolConfig | Mapping[str, Any]) -> PoolConfig:
    return attrs.evolve(value, name=name) if isinstance(value, PoolConfig) else parse_profile(name, value)


def pool_facts(status: PoolStatus | None) -> dict[str, Any]:
    """Return a pool's status as JSON values, under the names that other programs use; None for a pool not started."""
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
    """Return a profile as JSON values; of the environment only the names."""
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
