"""A leased slot of a node, with the interface of a lease on this machine."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Sequence
from typing import Protocol, Unpack

import attrs

from hyperruntime.cluster.slots.remote_commands import ClusterShell, start_process, start_terminal
from hyperruntime.cluster.slots.remote_exec import run_for_copy
from hyperruntime.cluster.slots.remote_ports import RemotePorts
from hyperruntime.cluster.slots.slot_calls import SlotCalls
from hyperruntime.concurrency.blocking import run_cancellable
from hyperruntime.exec.options import (
    ExecOptions,
    SlotExecKeywords,
    SlotShellKeywords,
    SlotTerminalKeywords,
)
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.pool.pooled_sandbox import PooledSandbox
from hyperruntime.pool_values.results import Slot
from hyperruntime.sandbox import Pool
from hyperruntime.spec import ExecResult
from hyperruntime.transfer import copy as transfer
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport


class NodePool(Pool, Protocol):
    """A pool whose slots are on nodes."""

    def calls_of(self, slot: Slot) -> SlotCalls:
        """Return the calls about a leased slot to its node; see :meth:`ClusterPool.calls_of`."""
        ...

    def ports_of(self, slot: Slot) -> RemotePorts:
        """Return the forwarded ports of a leased slot; see :meth:`ClusterPool.ports_of`."""
        ...


class ClusterLease(PooledSandbox[NodePool]):
    """One leased slot of a node; the methods are those of :class:`~hyperruntime.pool.lease.Lease`.

    Attributes:
        slot: the handle of the lease.
        pool: the pool that the slot belongs to.
    """

    async def exec(
        self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]
    ) -> ExecResult:
        """Run a command in the slot; see :meth:`Lease.exec` for arguments and errors."""
        return await self._calls.run("pool.exec", args, options)

    async def spawn(
        self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]
    ) -> Process:
        """Start a command in the background; see :meth:`Lease.spawn` for arguments and errors.

        On the event loop of the cluster, await the twins of methods that wait, such as ``asignal``,
        ``aclose`` and ``await_end``; ``signal``, ``close`` and ``wait`` raise PoolError there, and
        work in other threads.
        """
        return await start_process(self._calls, args, ExecOptions(**options))

    async def terminal(
        self,
        args: Sequence[str | bytes],
        *,
        rows: int = 24,
        cols: int = 80,
        **options: Unpack[SlotTerminalKeywords],
    ) -> Terminal:
        """Start a command on a terminal; see :meth:`Lease.terminal`, and :meth:`spawn` about
        methods that wait.
        """
        return await start_terminal(self._calls, args, (rows, cols), ExecOptions(**options))

    async def shell(self, **options: Unpack[SlotShellKeywords]) -> ClusterShell:
        """Return a persistent bash of the slot; see :meth:`Lease.shell`, and :meth:`spawn` about
        methods that wait.
        """
        return await ClusterShell.open(self._calls, options)

    async def signal_group(self, group: str, number: int) -> bool:
        """Send a signal to the commands of a group; see :meth:`Lease.signal_group`."""
        return bool(
            (await self._calls.call("pool.signal_group", group=group, number=int(number))).value
        )

    async def end_group(self, group: str) -> bool:
        """Kill all processes of the commands of a group; see :meth:`Lease.end_group`."""
        return bool((await self._calls.call("pool.end_group", group=group)).value)

    async def end_processes(self) -> None:
        """End all processes of the slot; see :meth:`Lease.end_processes`."""
        await self._calls.call("pool.end_processes")

    async def put(
        self,
        source: str | os.PathLike[str],
        target: str,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Copy a file or directory of the head's machine into the slot; see :meth:`Lease.put`."""
        options = transfer.copy_options(timeout_s)
        path = posixpath.join(self.slot.workspace, target)
        run = run_for_copy(self.exec, asyncio.get_running_loop())
        await run_cancellable(
            lambda cancel_fd: transfer.put(
                run, source, path, attrs.evolve(options, cancel_fd=cancel_fd)
            )
        )

    async def get(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> ExtractReport:
        """Copy an untrusted file or directory of the slot to the head's machine; see
        :meth:`Lease.get`.
        """
        options = transfer.copy_options(timeout_s)
        path = posixpath.join(self.slot.workspace, source)
        run = run_for_copy(self.exec, asyncio.get_running_loop())
        return await run_cancellable(
            lambda cancel_fd: transfer.get(
                run, path, target, attrs.evolve(options, cancel_fd=cancel_fd), limits
            )
        )

    async def forward(self, port: int, *, host: str = "127.0.0.1") -> tuple[str, int]:
        """Listen on the head's machine for clients of a port of the slot; see
        :meth:`Lease.forward`.
        """
        return await self.pool.ports_of(self.slot).open(port, host)

    @property
    def _calls(self) -> SlotCalls:
        return self.pool.calls_of(self.slot)
