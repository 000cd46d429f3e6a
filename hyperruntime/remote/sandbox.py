"""A sandbox elsewhere, with the interface of a lease on this machine."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from typing import Unpack

import attrs

from hyperruntime.concurrency.blocking import run_cancellable
from hyperruntime.errors import StaleLeaseError
from hyperruntime.exec.options import (
    ExecOptions,
    SlotExecKeywords,
    SlotShellKeywords,
    SlotTerminalKeywords,
)
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.terminal import Terminal, terminal_options
from hyperruntime.pool.pooled_sandbox import PooledSandbox
from hyperruntime.pool_values.results import Slot
from hyperruntime.remote.calls import Calls, wait_cancellable
from hyperruntime.remote.commands import (
    RemotePorts,
    RemoteShell,
    start_process,
    start_terminal,
)
from hyperruntime.sandbox import Pool
from hyperruntime.spec import ExecResult
from hyperruntime.transfer import copy as transfer
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport


class RemoteSandbox(PooledSandbox[Pool]):
    """A sandbox of a pool elsewhere; each verb is one request to the peer that has it.

    The methods are those of :class:`~hyperruntime.pool.lease.Lease`. Files are read and written by
    commands, as there.

    Attributes:
        slot: the handle of the lease.
        pool: the pool that the slot belongs to.
    """

    def __init__(self, pool: Pool, slot: Slot, calls: Calls) -> None:
        """Bind a sandbox.

        Args:
            pool: its pool at the caller, which releases it and calls its tools.
            slot: the handle of the lease.
            calls: asks the peer about it.
        """
        super().__init__(pool, slot)
        self._ports = RemotePorts(calls)
        self._open_calls: Calls | None = calls

    @property
    def calls(self) -> Calls:
        """The requests about it.

        Raises:
            StaleLeaseError: it was released.
        """
        if self._open_calls is None:
            raise StaleLeaseError(
                f"slot {self.slot.slot_id} was released, or its lease expired; acquire another one"
            )
        return self._open_calls

    def close(self) -> None:
        """Ask nothing any more, and close its forwarded ports; the lease has ended."""
        self._open_calls = None
        self._ports.close()

    async def exec(
        self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]
    ) -> ExecResult:
        """Run a command in the slot; see :meth:`Lease.exec` for arguments and errors."""
        options.setdefault("timeout_s", 300.0)
        return await self.calls.run("exec.run", args, options)

    async def spawn(
        self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]
    ) -> Process:
        """Start a command in the background; see :meth:`Lease.spawn` for arguments and errors.

        On the event loop of the cluster, await the twins of methods that wait, such as ``asignal``,
        ``aclose`` and ``await_end``; ``signal``, ``close`` and ``wait`` raise PoolError there, and
        work in other threads.
        """
        return await start_process(self.calls, args, ExecOptions(**options))

    async def terminal(
        self, args: Sequence[str | bytes], **options: Unpack[SlotTerminalKeywords]
    ) -> Terminal:
        """Start a command on a terminal; see :meth:`Lease.terminal`, and :meth:`spawn` about
        methods that wait.
        """
        return await start_terminal(self.calls, args, *terminal_options(**options))

    async def shell(self, **options: Unpack[SlotShellKeywords]) -> RemoteShell:
        """Return a persistent bash of the slot; see :meth:`Lease.shell`, and :meth:`spawn` about
        methods that wait.
        """
        return await RemoteShell.open(self.calls, options)

    async def signal_group(self, group: str, number: int) -> bool:
        """Send a signal to the commands of a group; see :meth:`Lease.signal_group`."""
        answer = await self.calls.call("group.signal", group=group, signal=int(number))
        return bool(answer.value)

    async def end_group(self, group: str) -> bool:
        """Kill all processes of the commands of a group; see :meth:`Lease.end_group`."""
        return bool((await self.calls.call("group.end", group=group)).value)

    async def end_processes(self) -> None:
        """End all processes of the slot; see :meth:`Lease.end_processes`."""
        await self.calls.call("slot.end_processes")

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
        await run_cancellable(
            lambda cancel_fd: transfer.put(
                self._run_for_copy, source, path, attrs.evolve(options, cancel_fd=cancel_fd)
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
        return await run_cancellable(
            lambda cancel_fd: transfer.get(
                self._run_for_copy,
                path,
                target,
                attrs.evolve(options, cancel_fd=cancel_fd),
                limits,
            )
        )

    async def forward(self, port: int, *, host: str = "127.0.0.1") -> tuple[str, int]:
        """Listen on the head's machine for clients of a port of the slot; see
        :meth:`Lease.forward`.
        """
        return await self._ports.open(port, host)

    def _run_for_copy(self, args: Sequence[str], options: ExecOptions) -> ExecResult:
        """Run a command from a thread, as copies need it; a cancellation ends the command."""
        loop = self.calls.loop
        work = self.exec(
            args,
            timeout_s=options.timeout_s,
            input=options.input,
            on_output=options.on_output,
            output_limit_bytes=options.output_limit_bytes,
        )
        return wait_cancellable(work, loop, options.cancel_fd)
