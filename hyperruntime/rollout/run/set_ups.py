"""The set-ups of items: one for all trajectories of a group, where slots can start from snapshots.

Design: docs/design/rollouts.md#one-set-up-for-a-group.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.errors import PoolError, StorageError, UnsupportedOptionError
from hyperruntime.logs import get_logger
from hyperruntime.pool.lease import Lease
from hyperruntime.rollout.environment import Item, UnscoredEnvironmentBase

if TYPE_CHECKING:
    from hyperruntime.layers.snapshots.snapshot import Snapshot
    from hyperruntime.rollout.run.options import RolloutOptions
    from hyperruntime.rollout.run.slot_pools import PooledSlots
    from hyperruntime.sandbox import Sandbox
    from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)

_WORTH_S = 5.0  # a set-up of less is run again where a rollback takes a start of the engine


@attrs.define(eq=False)
class _Group:
    """What the trajectories of an item share; ``files`` is None before the first set-up."""

    turn: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    files: Snapshot | None = None
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    is_shared: bool = True


def has_files_in_memory(spec: ContainerSpec) -> bool:
    """Return whether ``/tmp`` of a container is a memory file system, which no snapshot has."""
    return spec.read_only_rootfs or spec.limits.tmpfs_bytes is not None


class SetUps:
    """Prepares the slots of a run; of an item's slots only one, if its files can be kept."""

    def __init__(
        self, environment: UnscoredEnvironmentBase, options: RolloutOptions, slots: PooledSlots
    ) -> None:
        """Prepare nothing yet.

        Args:
            environment: its ``setup`` prepares a slot.
            options: the size of groups, and the time limit of a set-up.
            slots: remove the files that no trajectory needs.
        """
        self._environment = environment
        self._slots = slots
        self._timeout_s = options.setup_s
        self._shares = options.group_size > 1 and not environment.setup_per_trajectory
        self._groups: dict[str, _Group] = {}

    async def prepare(self, item: Item, lease: Sandbox, spec: ContainerSpec) -> Mapping[str, Any]:
        """Prepare the slot of a trajectory; return what ``setup`` returned.

        Args:
            item: the item.
            lease: the slot, just leased.
            spec: the spec of its container.
        """
        if has_files_in_memory(spec) or not (
            self._shares and isinstance(lease, Lease) and lease.keeps_files
        ):
            return await self._set_up(item, lease)
        return await self._share(self._groups.setdefault(item.id, _Group()), item, lease)

    async def end(self, item: Item) -> None:
        """Remove the files of an item whose trajectories have all ended."""
        group = self._groups.pop(item.id, None)
        if group is not None and group.files is not None:
            await self._slots.drop(group.files)

    async def _share(self, group: _Group, item: Item, lease: Lease) -> Mapping[str, Any]:
        async with group.turn:
            if group.files is None and group.is_shared:
                began = time.monotonic()
                meta = await self._set_up(item, lease)
                if lease.pool.engine.slow_rollbacks and time.monotonic() - began < _WORTH_S:
                    group.is_shared = False
                else:
                    await self._keep(group, item, lease, meta)
                return meta
        if group.files is None:
            return await self._set_up(item, lease)
        await lease.rollback(group.files)
        return copy.deepcopy(group.meta)

    async def _set_up(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
        async with asyncio.timeout(self._timeout_s):
            return await self._environment.setup(item, lease)

    async def _keep(self, group: _Group, item: Item, lease: Lease, meta: Mapping[str, Any]) -> None:
        """Keep the result of a set-up, unless processes are part of it."""
        try:
            await self._slots.drop()
            group.meta = copy.deepcopy(meta)
            group.files = await lease.snapshot()
        # TypeError: a value that cannot be copied
        except (PoolError, UnsupportedOptionError, StorageError, TypeError) as error:
            group.is_shared = False
            log.info("set-up not shared", item=item.id, why=str(error))
