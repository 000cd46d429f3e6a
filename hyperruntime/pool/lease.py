"""A leased slot with hands: what environments and embedding programs use."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.values.policy import ToolPolicy
from hyperruntime.pool.values.result import ExecutionResult
from hyperruntime.pool.values.slot import Slot
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, ExecResult
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport

if TYPE_CHECKING:
    from hyperruntime.pool.pool import SlotPool


class Lease:
    """One leased slot: commands, tools and files in it, all as the slot's own user.

    Attributes:
        slot: the lease.
        pool: whose it is.
    """

    def __init__(self, pool: SlotPool, slot: Slot) -> None:
        """Give a lease hands; the pool decides with each call whether it is good."""
        self.pool, self.slot = pool, slot

    async def exec(
        self,
        args: Sequence[str | bytes],
        *,
        timeout_s: float | None = 300.0,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        input: bytes | BinaryIO | None = None,  # noqa: A002 - as in Container.exec
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> ExecResult:
        """Run a command in the workspace, or in ``workdir`` (absolute, or relative to the workspace).

        Raises:
            StaleLeaseError: the slot was released, or its lease expired.
            SandboxLostError: its container ended.
        """
        return await self.pool.run(
            self.slot,
            lambda place: place.aexec(
                args,
                timeout_s=timeout_s,
                env=env,
                workdir=workdir,
                input=input,
                output_limit_bytes=output_limit_bytes,
            ),
        )

    async def tool(
        self, name: str, args: Mapping[str, Any], *, timeout_s: float | None = None, policy: ToolPolicy | None = None
    ) -> ExecutionResult:
        """Call a tool; the same as ``pool.execute``."""
        return await self.pool.execute(self.slot, name, args, timeout_s=timeout_s, policy=policy)

    async def end_processes(self) -> None:
        """End everything that runs in the slot, background processes and persistent shells too; its files stay.

        Raises:
            PoolError: something could not be ended.
        """
        await self.pool.end_processes(self.slot)

    async def put(
        self,
        source: str | os.PathLike[str],
        target: str,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Copy a file or directory of the host to ``target`` (absolute, or relative to the workspace).

        The other arguments and the errors are those of :meth:`Container.put`.
        """

        async def copy(place: SlotExec) -> None:
            path = posixpath.join(place.workspace, target)
            await place.container.aput(source, path, timeout_s=timeout_s, **place.options)

        await self.pool.run(self.slot, copy)

    async def get(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> ExtractReport:
        """Copy a path of the slot to the host; what it holds is not trusted.

        The other arguments and the errors are those of :meth:`Container.get`.
        """

        async def copy(place: SlotExec) -> ExtractReport:
            path = posixpath.join(place.workspace, source)
            return await place.container.aget(path, target, limits=limits, timeout_s=timeout_s, **place.options)

        return await self.pool.run(self.slot, copy)
