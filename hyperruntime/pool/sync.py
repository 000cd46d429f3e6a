"""A pool for programs without asyncio: the same methods, run on an event loop in a thread.

A forked child has neither the thread nor the containers; its calls to the parent's pool raise
PoolClosedError.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, Unpack

from hyperruntime.concurrency.background_loop import BackgroundLoop
from hyperruntime.concurrency.closing import Closing
from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.errors import PoolClosedError
from hyperruntime.exec.options import SlotExecKeywords, SlotShellKeywords, SlotTerminalKeywords
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.pool.lease import Lease
from hyperruntime.pool.lease_files import SyncLeaseFiles
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool.tools import Request
from hyperruntime.pool.values.config import PoolConfig, ToolPolicy
from hyperruntime.pool.values.results import ExecutionResult, PoolStatus, Slot
from hyperruntime.runtime import Runtime, open_runtime
from hyperruntime.spec import ContainerSpec, ExecResult
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport

T = TypeVar("T")

_open_pools: PerProcess[weakref.WeakSet[SyncPool]] = PerProcess(weakref.WeakSet)


def _end_with_program() -> None:
    for pool in tuple(_open_pools.get()):
        pool.abandon()


# Before it calls atexit functions, the interpreter waits for the threads that run commands, and so
# for the commands. concurrent.futures registers that wait with threading._register_atexit, whose
# functions run in reverse order: ours, registered later, runs first. Source: threading.py,
# _shutdown.
threading._register_atexit(_end_with_program)  # type: ignore[attr-defined]  # noqa: SLF001 - see above


class SyncLease(SyncLeaseFiles):
    """A leased slot for programs without asyncio; see :class:`~hyperruntime.pool.lease.Lease`.

    Attributes:
        slot: the handle of the lease.
    """

    _lease: Lease

    def __init__(self, loop: BackgroundLoop, lease: Lease) -> None:
        """Wrap a lease; its calls run on ``loop``."""
        self._loop, self._lease = loop, lease
        self.slot = lease.slot

    def exec(
        self,
        args: Sequence[str | bytes],
        **options: Unpack[SlotExecKeywords],
    ) -> ExecResult:
        """Run a command in the slot; see :meth:`Lease.exec`."""
        return self._loop.run(self._lease.exec(args, **options))

    def spawn(self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]) -> Process:
        """Start a command in the slot in the background; see :meth:`Lease.spawn`."""
        return self._loop.run(self._lease.spawn(args, **options))

    def terminal(
        self,
        args: Sequence[str | bytes],
        *,
        rows: int = 24,
        cols: int = 80,
        **options: Unpack[SlotTerminalKeywords],
    ) -> Terminal:
        """Start a command in the slot on a terminal; see :meth:`Lease.terminal`."""
        return self._loop.run(self._lease.terminal(args, rows=rows, cols=cols, **options))

    def shell(self, **options: Unpack[SlotShellKeywords]) -> Shell:
        """Return a persistent bash of the slot; see :meth:`Lease.shell`."""
        return self._loop.run(self._lease.shell(**options))

    def signal_group(self, group: str, number: int) -> bool:
        """Send a signal to the commands of a group; see :meth:`Lease.signal_group`."""
        return self._loop.run(self._lease.signal_group(group, number))

    def end_group(self, group: str) -> bool:
        """Kill all processes of the commands of a group; see :meth:`Lease.end_group`."""
        return self._loop.run(self._lease.end_group(group))

    def end_processes(self) -> None:
        """End all processes of the slot; see :meth:`Lease.end_processes`."""
        self._loop.run(self._lease.end_processes())

    def tool(
        self,
        name: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        policy: ToolPolicy | None = None,
    ) -> ExecutionResult:
        """Call a tool in the slot; see :meth:`SlotPool.execute`."""
        return self._loop.run(self._lease.tool(name, args, timeout_s=timeout_s, policy=policy))

    def put(
        self,
        source: str | os.PathLike[str],
        target: str,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Copy a file or directory of the host into the slot; see :meth:`Lease.put`."""
        self._loop.run(self._lease.put(source, target, timeout_s=timeout_s))

    def get(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> ExtractReport:
        """Copy a file or directory of the slot to the host, untrusted; see :meth:`Lease.get`."""
        return self._loop.run(self._lease.get(source, target, limits=limits, timeout_s=timeout_s))

    def forward(self, port: int, *, host: str = "127.0.0.1") -> tuple[str, int]:
        """Listen on this machine for clients of a port of the slot; see :meth:`Lease.forward`."""
        return self._loop.run(self._lease.forward(port, host=host))


class SyncPool(Closing):
    """A pool for programs without asyncio, safe to use from many threads; :func:`open_pool` makes
    one.

    Attributes:
        pool: the asynchronous pool, for coroutines given to :meth:`submit`.
    """

    def __init__(self, runtime: Runtime, config: PoolConfig) -> None:
        """Start the pool.

        Args:
            runtime: starts the containers; it must stay open as long as the pool.
            config: the pool's configuration.

        Raises:
            HyperRuntimeError: the pool cannot be started; nothing is left running.
        """
        self.pool = SlotPool(runtime, config)
        self._loop = BackgroundLoop(
            "hyperruntime-pool-loop", lambda why: PoolClosedError(f"this pool {why}")
        )
        _open_pools.get().add(self)
        try:
            self._loop.run(self.pool.start())
        except BaseException:
            self.close()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the pool's event loop."""
        return self._loop.submit(work)

    def acquire(self, task_id: str | None = None, *, timeout_s: float | None = None) -> Slot:
        """Lease a slot; see :meth:`SlotPool.acquire`."""
        future = self._loop.submit(self.pool.acquire(task_id, timeout_s=timeout_s))
        try:
            return future.result()
        except BaseException:
            if not future.cancel() and future.exception() is None:
                # acquired during the interrupt
                self._loop.submit(self.pool.release_if_held(future.result()))
            raise

    def release(self, slot: Slot, *, reset_workspace: bool = True) -> None:
        """Release a slot; see :meth:`SlotPool.release`."""
        self._loop.run(self.pool.release(slot, reset_workspace=reset_workspace))

    @contextmanager
    def lease(
        self, task_id: str | None = None, *, timeout_s: float | None = None
    ) -> Iterator[SyncLease]:
        """Lease a slot for a block, then release and reset it; see :meth:`SlotPool.acquire`."""
        slot = self.acquire(task_id, timeout_s=timeout_s)
        try:
            yield SyncLease(self._loop, Lease(self.pool, slot))
        finally:
            self._loop.run(self.pool.release_if_held(slot))

    def lease_of(self, slot: Slot) -> SyncLease:
        """Return the lease of a slot handle, bound to this pool."""
        return SyncLease(self._loop, self.pool.lease_of(slot))

    def execute(
        self, slot: Slot, tool: str, args: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> ExecutionResult:
        """Call a tool in a slot; see :meth:`SlotPool.execute`."""
        return self._loop.run(self.pool.execute(slot, tool, args, timeout_s=timeout_s))

    def execute_batch(
        self, requests: Sequence[Request], *, timeout_s: float | None = None
    ) -> list[ExecutionResult]:
        """Call many tools, in different slots at the same time; see
        :meth:`SlotPool.execute_batch`.
        """
        return self._loop.run(self.pool.execute_batch(requests, timeout_s=timeout_s))

    def status(self) -> PoolStatus:
        """Return the pool's present status."""

        async def status() -> PoolStatus:
            return self.pool.status()

        return self._loop.run(status())

    def settle(self) -> None:
        """Wait until every released slot is reset or quarantined."""
        self._loop.run(self.pool.settle())

    def close(self) -> None:
        """Stop the pool and its thread; may be called again. In a forked child it does nothing."""
        try:
            self._loop.run(self.pool.stop())
        except PoolClosedError:
            return
        self._loop.close()
        _open_pools.get().discard(self)

    def abandon(self) -> None:
        """End all containers and block until they have ended; called at exit for a pool that was
        not closed.
        """
        if self._loop.is_here:
            self.pool.abandon()


@contextmanager
def open_pool(
    config: PoolConfig | ContainerSpec, runtime: Runtime | str | None = None
) -> Iterator[SyncPool]:
    """Open a pool for a block of a program without asyncio.

    Args:
        config: the pool's configuration, or only the spec of its containers.
        runtime: an open runtime, which stays open; or an argument of
            :func:`~hyperruntime.runtime.open_runtime`, whose runtime is closed after the block.

    Raises:
        HyperRuntimeError: the pool cannot be started.
    """
    config = PoolConfig(spec=config) if isinstance(config, ContainerSpec) else config
    with ExitStack() as stack:
        opened = (
            runtime if isinstance(runtime, Runtime) else stack.enter_context(open_runtime(runtime))
        )
        yield stack.enter_context(SyncPool(opened, config))
