"""The interface of pools for rollouts: slots for agents, unused containers for verification."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hyperruntime.pool.lease import Lease
    from hyperruntime.spec import ContainerSpec


class Slots(Protocol):
    """Leases slots; the end of the ``async with`` releases the slot, which is reset before its next use."""

    def lease(self, spec: ContainerSpec, task_id: str) -> AbstractAsyncContextManager[Lease]:
        """Lease a slot for an agent.

        Args:
            spec: container spec of the item.
            task_id: id of the trajectory.
        """
        ...

    def fresh(self, spec: ContainerSpec, task_id: str) -> AbstractAsyncContextManager[Lease]:
        """Lease a container that has not been used and is not used again.

        Args:
            spec: container spec.
            task_id: id of the lease.
        """
        ...

    async def end_processes(self, lease: Lease) -> None:
        """Kill all processes of a slot; its files stay."""
        ...
