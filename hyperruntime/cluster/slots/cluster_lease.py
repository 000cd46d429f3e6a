"""A leased slot of a node, with the interface of a lease on this machine."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

import attrs

from hyperruntime.cluster.slots.remote_exec import run_for_copy
from hyperruntime.concurrency.blocking import run_cancellable
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.exec.options import SlotExecKeywords
from hyperruntime.pool.lease_files import LeaseFiles
from hyperruntime.pool.values.config import ToolPolicy
from hyperruntime.pool.values.results import ExecutionResult, Slot
from hyperruntime.spec import ExecResult
from hyperruntime.transfer import copy as transfer
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport

if TYPE_CHECKING:
    from hyperruntime.cluster.slots.cluster_pool import ClusterPool

_ONLY_HERE = "the slots of other nodes run commands to their end only; use exec there, or a pool on this machine"
_NO_SHELL = (
    "a slot of another node has no shell for its caller; use the tool bash_stateful there, or a pool on this machine"
)


class ClusterLease(LeaseFiles):
    """One leased slot of a node; the methods are those of :class:`~hyperruntime.pool.lease.Lease`.

    Attributes:
        slot: the handle of the lease.
        pool: the pool that the slot belongs to.
    """

    def __init__(self, pool: ClusterPool, slot: Slot) -> None:
        """Bind a lease to its pool; the pool checks with each call that the lease is still valid."""
        self.pool, self.slot = pool, slot

    async def exec(self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]) -> ExecResult:
        """Run a command in the slot; see :meth:`Lease.exec` for arguments and errors."""
        return await self.pool.exec(self.slot, args, **options)

    async def spawn(self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]) -> NoReturn:
        """Refuse: a node runs commands to their end only.

        Raises:
            UnsupportedOptionError: always.
        """
        raise UnsupportedOptionError("cluster", "spawn", _ONLY_HERE)

    async def terminal(self, args: Sequence[str | bytes], **options: Any) -> NoReturn:  # noqa: ANN401
        """Refuse: a node has no terminals.

        Raises:
            UnsupportedOptionError: always.
        """
        raise UnsupportedOptionError("cluster", "terminal", _ONLY_HERE)

    async def shell(self, **options: Any) -> NoReturn:  # noqa: ANN401
        """Refuse: a node keeps persistent shells for tools only.

        Raises:
            UnsupportedOptionError: always.
        """
        raise UnsupportedOptionError("cluster", "shell", _NO_SHELL)

    async def signal_group(self, group: str, number: int) -> bool:
        """Send a signal to the commands of a group; see :meth:`Lease.signal_group`."""
        return await self.pool.signal_group(self.slot, group, number)

    async def end_group(self, group: str) -> bool:
        """Kill all processes of the commands of a group; see :meth:`Lease.end_group`."""
        return await self.pool.end_group(self.slot, group)

    async def tool(
        self, name: str, args: Mapping[str, Any], *, timeout_s: float | None = None, policy: ToolPolicy | None = None
    ) -> ExecutionResult:
        """Call a tool in the slot; see :meth:`SlotPool.execute` for arguments and errors."""
        return await self.pool.execute(self.slot, name, args, timeout_s=timeout_s, policy=policy)

    async def end_processes(self) -> None:
        """End all processes of the slot; see :meth:`Lease.end_processes`."""
        await self.pool.end_processes(self.slot)

    async def put(
        self, source: str | os.PathLike[str], target: str, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> None:
        """Copy a file or directory of the head's machine into the slot; see :meth:`Lease.put`."""
        options = transfer.copy_options(timeout_s)
        path = posixpath.join(self.slot.workspace, target)
        run = run_for_copy(self.exec, asyncio.get_running_loop())
        await run_cancellable(
            lambda cancel_fd: transfer.put(run, source, path, attrs.evolve(options, cancel_fd=cancel_fd))
        )

    async def get(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> ExtractReport:
        """Copy a file or directory of the slot to the head's machine, which trusts it not; see :meth:`Lease.get`."""
        options = transfer.copy_options(timeout_s)
        path = posixpath.join(self.slot.workspace, source)
        run = run_for_copy(self.exec, asyncio.get_running_loop())
        return await run_cancellable(
            lambda cancel_fd: transfer.get(run, path, target, attrs.evolve(options, cancel_fd=cancel_fd), limits)
        )

    async def forward(self, port: int, *, host: str = "127.0.0.1") -> tuple[str, int]:
        """Refuse: the connections between nodes and head carry no ports.

        Raises:
            UnsupportedOptionError: always.
        """
        why = f"port {port} of a slot on a node cannot be reached on {host}; use a pool on this machine"
        raise UnsupportedOptionError("cluster", "forward", why)
