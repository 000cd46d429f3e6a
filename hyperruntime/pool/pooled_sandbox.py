"""What all pools and all leases have in common: batches; files, tools and the release."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

from hyperruntime.errors import HyperRuntimeError, SpecError, StaleLeaseError
from hyperruntime.pool.tools.dispatch import run_batch
from hyperruntime.pool_values.config import ToolPolicy
from hyperruntime.pool_values.results import ExecutionResult, Request, Slot
from hyperruntime.sandbox import Pool, Sandbox
from hyperruntime.spec import ExecResult, check_seconds
from hyperruntime.transfer.file_calls import (
    FILE_TIMEOUT_S,
    READ_LIMIT_BYTES,
    FileCall,
    FileStat,
    OnError,
    inside,
    list_call,
    read_call,
    read_calls,
    stat_call,
    write_call,
)

T = TypeVar("T")
P = TypeVar("P", bound=Pool)

_UNDO_TIMEOUT_S = 5.0


class LeasingPool(Pool):
    """A pool of slots: what does not depend on where they are."""

    async def __aenter__(self) -> Self:
        """Start the pool."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the pool."""
        await self.stop()

    async def release_if_held(self, slot: Slot) -> None:
        """Release a slot, except if it was released or its lease expired; for ``finally``
        blocks.
        """
        with suppress(StaleLeaseError):
            await self.release(slot)

    async def execute_batch(
        self, requests: Sequence[Request], *, timeout_s: float | None = None
    ) -> list[ExecutionResult]:
        """Call many tools, in different slots at the same time; errors become results, in the order
        of the requests.

        Args:
            requests: the slot, the tool's name and its arguments for each call.
            timeout_s: maximum seconds for each call; None leaves it to the arguments and the
                policy.
        """
        return await run_batch(requests, self.execute, timeout_s=timeout_s)

    def _asked(self, task_id: str | None, timeout_s: float | None) -> tuple[str, float]:
        """Return the task and the seconds of an acquire, by default a random name and those of the
        configuration.

        Raises:
            SpecError: one of them is invalid.
        """
        task_id = task_id or os.urandom(8).hex()
        if not isinstance(task_id, str):
            raise SpecError("task_id", task_id, "text")
        if timeout_s is not None and timeout_s != 0:
            check_seconds("timeout_s", timeout_s)
        return task_id, self.config.acquire_timeout_s if timeout_s is None else timeout_s


class PooledSandbox(Sandbox, Generic[P]):
    """A sandbox of a pool: its files, tools and release work through its commands and its pool.

    Paths are absolute, or relative to the workspace. ``timeout_s`` is a limit in seconds; None
    means no limit.

    Attributes:
        pool: the pool that the slot belongs to.
    """

    def __init__(self, pool: P, slot: Slot) -> None:
        """Bind a lease to its pool, which checks with each call that the lease is still valid."""
        self.pool = pool
        self.slot = slot

    async def tool(
        self,
        name: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        policy: ToolPolicy | None = None,
    ) -> ExecutionResult:
        """Call a tool in the slot; see :meth:`SlotPool.execute` for arguments and errors."""
        return await self.pool.execute(self.slot, name, args, timeout_s=timeout_s, policy=policy)

    async def release(self, *, reset_workspace: bool = True) -> None:
        """Release the slot; see :meth:`SlotPool.release` for arguments and errors."""
        await self.pool.release(self.slot, reset_workspace=reset_workspace)

    async def read_file(
        self,
        path: str,
        *,
        limit_bytes: int = READ_LIMIT_BYTES,
        timeout_s: float | None = FILE_TIMEOUT_S,
    ) -> bytes:
        """Return the bytes of a file; see :meth:`Container.read_file`."""
        return await self._call(read_call(self._inside(path), limit_bytes, timeout_s), timeout_s)

    async def read_files(
        self,
        paths: Iterable[str],
        *,
        limit_bytes: int = READ_LIMIT_BYTES,
        on_error: OnError = None,
        timeout_s: float | None = FILE_TIMEOUT_S,
    ) -> dict[str, bytes]:
        """Return the bytes of many files, by absolute path; see :meth:`Container.read_files`."""
        found = dict[str, bytes]()
        for call in read_calls(map(self._inside, paths), limit_bytes, timeout_s, on_error):
            part: dict[str, bytes] = await self._call(call, timeout_s)
            found |= part
        return found

    async def write_file(
        self,
        path: str,
        data: bytes,
        *,
        mode: int | None = None,
        parents: bool = True,
        timeout_s: float | None = FILE_TIMEOUT_S,
    ) -> None:
        """Write a whole file; see :meth:`Container.write_file`."""
        await self.write_files({path: data}, mode=mode, parents=parents, timeout_s=timeout_s)

    async def write_files(
        self,
        files: Mapping[str, bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        on_error: OnError = None,
        timeout_s: float | None = FILE_TIMEOUT_S,
    ) -> None:
        """Write many files; see :meth:`Container.write_files`."""
        placed = {self._inside(path): data for path, data in files.items()}
        if call := write_call(
            placed, mode=mode, parents=parents, timeout_s=timeout_s, on_error=on_error
        ):
            await self._call(call, timeout_s)

    async def stat(
        self, path: str, *, follow_symlinks: bool = True, timeout_s: float | None = FILE_TIMEOUT_S
    ) -> FileStat:
        """Return the facts of a path; see :meth:`Container.stat`."""
        call = stat_call(self._inside(path), follow_symlinks=follow_symlinks, timeout_s=timeout_s)
        return await self._call(call, timeout_s)

    async def listdir(
        self, path: str = ".", *, timeout_s: float | None = FILE_TIMEOUT_S
    ) -> list[str]:
        """Return the sorted names in a directory; see :meth:`Container.listdir`."""
        return await self._call(list_call(self._inside(path), timeout_s), timeout_s)

    def _inside(self, path: str) -> str:
        return inside(self.slot.workspace, path)

    async def _call(self, call: FileCall[T], timeout_s: float | None) -> T:
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        result = None
        try:
            result = await self._exec(call, timeout_s)
        finally:
            if call.undo is not None and (result is None or result.timed_out):
                with suppress(HyperRuntimeError):  # best effort: the slot may be gone
                    await self._exec(call.undo, _UNDO_TIMEOUT_S)
        return call.parse(result)

    async def _exec(self, call: FileCall[T], timeout_s: float | None) -> ExecResult:
        return await self.exec(
            call.args,
            input=call.input,
            env=call.env,
            workdir="/",
            timeout_s=timeout_s,
            output_limit_bytes=call.output_limit_bytes,
        )
