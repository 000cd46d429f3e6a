"""A pool for programs without asyncio: the same methods, run on an event loop in a thread.

A forked child has neither the thread nor the containers; its calls to the parent's pool raise
PoolClosedError.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from hyperruntime.concurrency.bridge import Bridge, waiting
from hyperruntime.concurrency.closing import Closing
from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.errors import PoolClosedError
from hyperruntime.layers.snapshots.snapshot import Snapshot
from hyperruntime.pool.lease import Lease
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.pool_values.results import PoolStatus, Slot
from hyperruntime.runtime import Runtime, open_runtime
from hyperruntime.sandbox import BlockingSandbox
from hyperruntime.spec import ContainerSpec
from hyperruntime.transfer.file_calls import FILE_TIMEOUT_S

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


class SyncLease(BlockingSandbox):
    """A leased slot for programs without asyncio; see :class:`~hyperruntime.pool.lease.Lease`.

    It has the methods of a lease. Each waits for the lease's method of the same name.

    Attributes:
        slot: the handle of the lease.
    """

    def __init__(self, bridge: Bridge, lease: Lease) -> None:
        """Wrap a lease; its calls run on the loop of ``bridge``."""
        self._bridge = bridge
        self._source = lease
        self.slot = lease.slot

    exec = waiting(Lease.exec)
    spawn = waiting(Lease.spawn)
    terminal = waiting(Lease.terminal)
    shell = waiting(Lease.shell)
    signal_group = waiting(Lease.signal_group)
    end_group = waiting(Lease.end_group)
    end_processes = waiting(Lease.end_processes)
    release = waiting(Lease.release)
    tool = waiting(Lease.tool)
    put = waiting(Lease.put)
    get = waiting(Lease.get)
    forward = waiting(Lease.forward)
    read_file = waiting(Lease.read_file)
    read_files = waiting(Lease.read_files)
    write_file = waiting(Lease.write_file)
    write_files = waiting(Lease.write_files)
    stat = waiting(Lease.stat)

    def listdir(self, path: str = ".", *, timeout_s: float | None = FILE_TIMEOUT_S) -> list[str]:
        """Return the sorted names in a directory; see :meth:`Container.listdir`."""
        return self._bridge.run(self._source.listdir(path, timeout_s=timeout_s))


class SyncPool(Closing):
    """A pool for programs without asyncio, safe to use from many threads; :func:`open_pool` makes
    one.

    Attributes:
        pool: the asynchronous pool, for coroutines given to :meth:`submit`.

    Example:
        >>> with hr.open_pool(hr.PoolConfig(spec=spec), runtime) as pool, pool.lease() as lease:
        ...     pool.execute(lease.slot, "bash", {"command": "printf hello"}).output
        'hello'
    """

    def __init__(self, runtime: Runtime, config: PoolConfig) -> None:
        """Start the pool.

        Args:
            runtime: starts the containers; it must stay open as long as the pool.
            config: the pool's configuration.

        Raises:
            HyperRuntimeError: the pool cannot be started; nothing is left running.
        """
        self._source = self.pool = SlotPool(runtime, config)
        self._bridge = Bridge(
            "hyperruntime-pool-loop", lambda why: PoolClosedError(f"this pool {why}")
        )
        _open_pools.get().add(self)
        try:
            self._bridge.run(self.pool.start())
        except BaseException:
            self.close()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the pool's event loop; a cancelled future is done at its end."""
        return self._bridge.submit(work)

    acquire = waiting(SlotPool.acquire, undo=SlotPool.release_if_held)
    release = waiting(SlotPool.release)
    execute = waiting(SlotPool.execute)
    execute_batch = waiting(SlotPool.execute_batch)
    settle = waiting(SlotPool.settle)

    @contextmanager
    def lease(
        self,
        task_id: str | None = None,
        *,
        timeout_s: float | None = None,
        base: Snapshot | str | None = None,
    ) -> Iterator[SyncLease]:
        """Lease a slot for a block, then release and reset it; see :meth:`SlotPool.acquire`."""
        slot = self.acquire(task_id, timeout_s=timeout_s, base=base)
        try:
            yield SyncLease(self._bridge, Lease(self.pool, slot))
        finally:
            self._bridge.run(self.pool.release_if_held(slot))

    def lease_of(self, slot: Slot) -> SyncLease:
        """Return the lease of a slot handle, bound to this pool."""
        return SyncLease(self._bridge, self.pool.lease_of(slot))

    def status(self) -> PoolStatus:
        """Return the pool's present status."""

        async def status() -> PoolStatus:
            return self.pool.status()

        return self._bridge.run(status())

    def close(self) -> None:
        """Stop the pool and its thread; may be called again. In a forked child it does nothing."""
        try:
            self._bridge.run(self.pool.stop())
        except PoolClosedError:
            return
        self._bridge.close()
        _open_pools.get().discard(self)

    def abandon(self) -> None:
        """End all containers and block until they have ended; called at exit for a pool that was
        not closed.
        """
        if self._bridge.is_here:
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
