"""A lease on a container of its own, as another user of that container.

Design: docs/design/pool.md#users-of-tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from hyperruntime.errors import PoolError
from hyperruntime.pool.lease import Lease
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.tools import call_tool
from hyperruntime.pool_values.config import ToolPolicy
from hyperruntime.pool_values.results import ExecutionResult
from hyperruntime.run_as import RunAs
from hyperruntime.sandbox import Sandbox

T = TypeVar("T")


class UserLease(Lease):
    """A lease whose commands, tools and copies run as a user of its container; made by
    :func:`lease_as`.

    Attributes:
        user: the user.
        ids: its ids in the container.
    """

    def __init__(self, lease: Lease, user: str, ids: RunAs) -> None:
        """Bind a user that the slot knows; see :meth:`SlotExec.add_user`."""
        super().__init__(lease.pool, lease.slot)
        self.user = user
        self.ids = ids

    async def _run(self, work: Callable[[SlotExec], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` with the slot as the user."""
        return await self.pool.run(self.slot, lambda slot_exec: work(slot_exec.view(self.user)))

    async def tool(
        self,
        name: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        policy: ToolPolicy | None = None,
    ) -> ExecutionResult:
        """Call a tool in the slot as the user; see :meth:`SlotPool.execute` for arguments and
        errors.
        """
        policy = policy or self.pool.config.tools
        return await self._run(
            lambda slot_exec: call_tool(slot_exec, name, args, timeout_s, policy)
        )


async def lease_as(lease: Sandbox, user: str) -> UserLease:
    """Return a lease of the same slot as a user of its container; the slot keeps its own user for
    the first lease.

    The slot needs a container of its own, which runs as root. Call this before commands that are
    not trusted run: the container says who the user is. ``HOME`` is the user's home directory.
    :meth:`Lease.end_processes` of either lease ends the processes of both.

    Args:
        lease: the lease.
        user: ``name`` or ``uid``, with an optional ``:group``.

    Raises:
        UserNotFoundError: the container has no such user.
        SpecError: the user is root, or in the group of root.
        PoolError: the slot shares its container, or is on a node of a cluster.
        StaleLeaseError: the slot was released, or its lease expired.
        SandboxLostError: the slot's container ended.
    """
    local = local_lease(lease)
    named = await local.pool.run(local.slot, lambda slot_exec: slot_exec.add_user(user))
    return UserLease(local, user, named.ids)


def local_lease(sandbox: Sandbox) -> Lease:
    """Return a sandbox as the lease of a pool on this machine.

    Raises:
        PoolError: it is on a node of a cluster.
    """
    if not isinstance(sandbox, Lease):
        raise PoolError("only a slot of a pool on this machine has other users; use a SlotPool")
    return sandbox
