"""A leased slot with hands: what environments and embedding programs use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Protocol

from hyperruntime.pool.result import ExecutionResult
from hyperruntime.pool.slot import Slot
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, ExecResult
from hyperruntime.tarball import ExtractLimits, ExtractReport


class Lease(Protocol):
    """One leased slot: commands, tools and files in it, all as the slot's own user.

    Attributes:
        slot: the lease.
    """

    slot: Slot

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
        ...

    async def tool(self, name: str, args: Mapping[str, Any], *, timeout_s: float | None = None) -> ExecutionResult:
        """Call a tool; the same as ``pool.execute``."""
        ...

    async def put(self, source: str | os.PathLike[str], target: str) -> None:
        """Copy a file or directory of the host to ``target`` (absolute, or relative to the workspace)."""
        ...

    async def get(
        self, source: str, target: str | os.PathLike[str], *, limits: ExtractLimits | None = None
    ) -> ExtractReport:
        """Copy a path of the slot to the host; what it holds is not trusted."""
        ...
