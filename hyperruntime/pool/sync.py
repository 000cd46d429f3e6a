"""A pool for programs without asyncio: the same methods, on an event loop of its own in a thread.

A forked child has neither the thread nor the containers: what it asks of its parent's pool is refused.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

from hyperruntime.errors import PoolClosedError
from hyperruntime.pool.lease import Lease
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool.values.config import PoolConfig
from hyperruntime.pool.values.result import ExecutionResult
from hyperruntime.pool.values.slot import Slot
from hyperruntime.pool.values.status import PoolStatus
from hyperruntime.runtime import Runtime, open_runtime
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, ContainerSpec, ExecResult
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport

T = TypeVar("T")

_open_pools: weakref.WeakSet[SyncPool] = weakref.WeakSet()


def _end_with_program() -> None:
    for pool in tuple(_open_pools):
        pool.abandon()


# The interpreter waits for threads that run commands, and they wait for the commands, before it calls what atexit has;
# what concurrent.futures registers its own end with comes earlier, the latest first. Source: threading.py, _shutdown.
threading._register_atexit(_end_with_program)  # type: ignore[attr-defined]  # noqa: SLF001 - see above


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        """Start it."""
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="hyperruntime-pool-loop", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that started it, and no forked child."""
        return os.getpid() == self._pid

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin work; the future may be waited for, and cancelled, by any thread.

        Raises:
            PoolClosedError: the loop is stopped, or this is a forked child.
        """
        if not self.is_here or self._loop.is_closed():
            work.close()
            why = "was stopped" if self.is_here else "is of this process's parent; open another one"
            raise PoolClosedError(f"this pool {why}")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work to its end; what interrupts the wait cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop it; may be called again."""
        if self.is_here and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


class SyncLease:
    """A leased slot with hands, for programs without asyncio; see :class:`~hyperruntime.pool.lease.Lease`.

    Attributes:
        slot: the lease.
    """

    def __init__(self, loop: LoopThread, lease: Lease) -> None:
        """Wrap one."""
        self._loop, self._lease = loop, lease
        self.slot = lease.slot

    def exec(
        self,
        args: Sequence[str | bytes],
        *,
        timeout_s: float | None = 300.0,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        input: bytes | BinaryIO | None = None,  # noqa: A002 - as in Container.exec
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> ExecResult:
        """Run a command in the workspace."""
        return self._loop.run(
            self._lease.exec(
                args,
                timeout_s=timeout_s,
                env=env,
                workdir=workdir,
                input=input,
                output_limit_bytes=output_limit_bytes,
            )
        )

    def tool(self, name: str, args: Mapping[str, Any], *, timeout_s: float | None = None) -> ExecutionResult:
        """Call a tool."""
        return self._loop.run(self._lease.tool(name, args, timeout_s=timeout_s))

    def put(self, source: str | os.PathLike[str], target: str, *, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> None:
        """Copy a file or directory of the host into the slot."""
        self._loop.run(self._lease.put(source, target, timeout_s=timeout_s))

    def get(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> ExtractReport:
        """Copy a path of the slot to the host; what it holds is not trusted."""
        return self._loop.run(self._lease.get(source, target, limits=limits, timeout_s=timeout_s))


class SyncPool:
    """A pool for programs without asyncio; safe to use from many threads. Made by :func:`open_pool`.

    Attributes:
        pool: the pool itself, for coroutines given to :meth:`submit`.
    """

    def __init__(self, runtime: Runtime, config: PoolConfig) -> None:
        """Start it.

        Raises:
            HyperRuntimeError: it cannot be started; nothing is left.
        """
        self.pool = SlotPool(runtime, config)
        self._loop = LoopThread()
        _open_pools.add(self)
        try:
            self._loop.run(self.pool.start())
        except BaseException:
            self.close()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin any work on the pool's event loop."""
        return self._loop.submit(work)

    def acquire(self, task_id: str | None = None, *, timeout_s: float | None = None) -> Slot:
        """Lease a slot; see :meth:`SlotPool.acquire`."""
        future = self._loop.submit(self.pool.acquire(task_id, timeout_s=timeout_s))
        try:
            return future.result()
        except BaseException:
            if not future.cancel() and future.exception() is None:
                self._loop.submit(self.pool.release_if_held(future.result()))  # it came as we were interrupted
            raise

    def release(self, slot: Slot, *, reset_workspace: bool = True) -> None:
        """Give a slot back; see :meth:`SlotPool.release`."""
        self._loop.run(self.pool.release(slot, reset_workspace=reset_workspace))

    @contextmanager
    def lease(self, task_id: str | None = None, *, timeout_s: float | None = None) -> Iterator[SyncLease]:
        """Lease a slot for a block; it is released and reset after it, whatever happened in it."""
        slot = self.acquire(task_id, timeout_s=timeout_s)
        try:
            yield SyncLease(self._loop, Lease(self.pool, slot))
        finally:
            self._loop.run(self.pool.release_if_held(slot))

    def lease_of(self, slot: Slot) -> SyncLease:
        """Return a lease with hands."""
        return SyncLease(self._loop, self.pool.lease_of(slot))

    def execute(
        self, slot: Slot, tool: str, args: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> ExecutionResult:
        """Call a tool in a slot; see :meth:`SlotPool.execute`."""
        return self._loop.run(self.pool.execute(slot, tool, args, timeout_s=timeout_s))

    def execute_batch(
        self, requests: Sequence[tuple[Slot, str, Mapping[str, Any]]], *, timeout_s: float | None = None
    ) -> list[ExecutionResult]:
        """Call many tools, different slots at the same time; see :meth:`SlotPool.execute_batch`."""
        return self._loop.run(self.pool.execute_batch(requests, timeout_s=timeout_s))

    def status(self) -> PoolStatus:
        """Return what it holds at this moment."""

        async def status() -> PoolStatus:
            return self.pool.status()

        return self._loop.run(status())

    def settle(self) -> None:
        """Wait until every slot that was released is as new, or given up."""
        self._loop.run(self.pool.settle())

    def close(self) -> None:
        """End everything; may be called again. A forked child, whose it is not, ends nothing."""
        try:
            self._loop.run(self.pool.stop())
        except PoolClosedError:
            return
        self._loop.close()
        _open_pools.discard(self)

    def abandon(self) -> None:
        """End every container here and now; done by itself when a program ends that has not closed its pool."""
        if self._loop.is_here:
            self.pool.abandon()

    def __enter__(self) -> SyncPool:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it, whatever happened."""
        self.close()


@contextmanager
def open_pool(config: PoolConfig | ContainerSpec, runtime: Runtime | str | None = None) -> Iterator[SyncPool]:
    """Open a pool for a block of a program without asyncio.

    Args:
        config: the pool's, or just its containers'.
        runtime: one that is open, or what :func:`~hyperruntime.runtime.open_runtime` takes, closed after the block.
    """
    config = PoolConfig(spec=config) if isinstance(config, ContainerSpec) else config
    with ExitStack() as stack:
        opened = runtime if isinstance(runtime, Runtime) else stack.enter_context(open_runtime(runtime))
        yield stack.enter_context(SyncPool(opened, config))
