"""Where agents work and where they are judged: what rollouts need of a pool."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hyperruntime.pool.lease import Lease
    from hyperruntime.spec import ContainerSpec


class Slots(Protocol):
    """Hands out leases; who leaves the ``async with`` has given the slot back, and it is reset before its next use."""

    def lease(self, spec: ContainerSpec, task_id: str) -> AbstractAsyncContextManager[Lease]:
        """Return a slot to work in."""
        ...

    def fresh(self, spec: ContainerSpec, task_id: str) -> AbstractAsyncContextManager[Lease]:
        """Return a slot in a container that nobody has used, and that nobody uses after it."""
        ...

    async def end_processes(self, lease: Lease) -> None:
        """End all that runs in a slot; its files stay."""
        ...
