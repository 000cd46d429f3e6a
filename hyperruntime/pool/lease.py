"""A leased slot with hands: what environments and embedding programs use. Imports the values, place and transfer."""

from __future__ import annotations

import functools
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from hyperruntime import transfer
from hyperruntime.pool.place import Place
from hyperruntime.pool.policy import ToolPolicy
from hyperruntime.pool.result import ExecutionResult
from hyperruntime.pool.slot import Slot
from hyperruntime.pool.threads import TRANSFERS, blocking
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, ExecResult
from hyperruntime.tarball import ExtractLimits, ExtractReport

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

    async def put(self, source: str | os.PathLike[str], target: str) -> None:
        """Copy a file or directory of the host to ``target`` (absolute, or relative to the workspace)."""

        async def copy(place: Place) -> None:
            path = posixpath.join(place.workspace, target)
            await blocking(TRANSFERS, lambda: transfer.put(_runner(place), source, path))

        await self.pool.run(self.slot, copy)

    async def get(
        self, source: str, target: str | os.PathLike[str], *, limits: ExtractLimits | None = None
    ) -> ExtractReport:
        """Copy a path of the slot to the host; what it holds is not trusted."""

        async def copy(place: Place) -> ExtractReport:
            path = posixpath.join(place.workspace, source)
            return await blocking(TRANSFERS, lambda: transfer.get(_runner(place), path, target, limits))

        return await self.pool.run(self.slot, copy)


def _runner(place: Place) -> transfer.Exec:
    """Return the container's blocking exec as a slot's user."""
    return functools.partial(place.container.exec, env=place.env, **place.options)
