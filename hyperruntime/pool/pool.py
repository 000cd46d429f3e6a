"""A pool that leases slots (private workspaces) in containers. See docs/design/pool.md#slots.

All methods must run on the event loop of :meth:`SlotPool.start`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import attrs

from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.concurrency.blocking import STARTS, blocking
from hyperruntime.driver import EngineInfo
from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    HyperRuntimeError,
    PoolClosedError,
    SandboxLostError,
    StaleLeaseError,
    UnsupportedOptionError,
)
from hyperruntime.layers.snapshots.snapshot import Snapshot
from hyperruntime.logs import get_logger
from hyperruntime.pool.fleet import Fleet
from hyperruntime.pool.lease import Lease
from hyperruntime.pool.lease_table import Grant, LeaseTable, stale
from hyperruntime.pool.pooled_sandbox import LeasingPool
from hyperruntime.pool.roster import Cell, CellState, PoolMember
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.tools import call_tool
from hyperruntime.pool.wait_queue import WaitQueue, cannot_start, too_late
from hyperruntime.pool_values.config import PoolConfig, ToolPolicy, make_layout
from hyperruntime.pool_values.results import ExecutionResult, PoolStatus, Slot
from hyperruntime.runtime import Runtime

log = get_logger(__name__)
T = TypeVar("T")


class SlotPool(LeasingPool):
    """A pool of equal slots; ``async with SlotPool(runtime, config) as pool:`` starts and stops it.

    Attributes:
        config: the pool's configuration.

    Example:
        >>> config = hr.PoolConfig(spec=spec)
        >>> async def main():
        ...     async with hr.SlotPool(runtime, config) as pool, pool.lease() as lease:
        ...         result = await pool.execute(lease.slot, "bash", {"command": "printf hello"})
        ...         return result.output
        >>> asyncio.run(main())
        'hello'
    """

    def __init__(self, runtime: Runtime, config: PoolConfig) -> None:
        """Store the configuration; nothing starts yet.

        Args:
            runtime: starts the containers; the caller closes it, after the pool has stopped.
            config: the pool's configuration.
        """
        self.config = config
        self._runtime = runtime
        self._state = "new"
        self._fleet_or_none: Fleet | None = None
        self._queue: WaitQueue[Slot] = WaitQueue()
        self._grants = LeaseTable()
        self._resets = BackgroundTasks(f"pool {config.name!r}")
        self._stopping: asyncio.Task[None] | None = None
        self._lost = 0
        self._engine: EngineInfo | None = None

    async def start(self) -> None:
        """Start the minimum of containers.

        Raises:
            PoolClosedError: the pool was started before.
            SpecError: this engine cannot isolate slots as the config asks.
            HyperRuntimeError: a container cannot be started; all others are removed.
        """
        if self._state != "new":
            raise PoolClosedError(f"pool {self.config.name!r} was started before; make another one")
        self._state = "open"
        began = time.monotonic()
        try:
            info = self._engine = await blocking(STARTS, lambda: self._runtime.info)
            layout = make_layout(
                self.config,
                users=info.users,
                driver=self._runtime.name,
                snapshots=info.snapshots and not info.slow_rollbacks,
            )
            self._fleet_or_none = Fleet(
                self._runtime, self.config, layout, changed=self._dispatch, lost=self._on_lost
            )
            await self._fleet_or_none.start()
        except BaseException:
            await self.stop()
            raise
        log.info(
            "pool started",
            pool=self.config.name,
            runtime=self._runtime.name,
            image=layout.spec.image,
            isolation=layout.isolation,
            slots_per_container=layout.slots,
            duration_s=time.monotonic() - began,
        )

    async def stop(self) -> None:
        """End waiting acquires, running commands and all containers; may be called again."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def acquire(
        self,
        task_id: str | None = None,
        *,
        timeout_s: float | None = None,
        base: Snapshot | str | None = None,
    ) -> Slot:
        """Lease a slot, first come first served; the pool starts a container if needed and allowed.

        Args:
            task_id: the task of the lease; None means a random name. A task gets the slot that it
                kept at its release.
            timeout_s: how long to wait; 0 means not at all, None the config's
                ``acquire_timeout_s``.
            base: a snapshot, or the name of one, whose files the slot gets, also instead of those
                that the task kept. The slot needs a container of its own, and its next reset drops
                them.

        Raises:
            SpecError: ``timeout_s`` or ``task_id`` is invalid, or ``base`` is gone, or of another
                engine or image.
            UnsupportedOptionError: ``base`` is given, and slots share containers or the engine has
                no snapshots.
            SlotTimeoutError: no slot became free in time.
            PoolStartError: no container can be started; its cause says why.
            PoolClosedError: the pool is not started, or was stopped.

        Example:
            >>> with runtime.container(spec) as container:
            ...     _ = container.exec(["touch", "/prepared"])
            ...     base = container.snapshot()
            >>> config = hr.PoolConfig(spec=spec, slots_per_container=1)
            >>> with hr.open_pool(config, runtime) as pool, pool.lease(base=base) as lease:
            ...     lease.exec(["test", "-e", "/prepared"]).exit_code
            0
        """
        fleet = self._fleet
        found = None if base is None else await self._find_base(fleet, base)
        slot = await self._take(fleet, *self._asked(task_id, timeout_s))
        if found is not None:
            await self._begin_from(fleet, slot, found)
        return slot

    async def _take(self, fleet: Fleet, task_id: str, wait_s: float) -> Slot:
        cell = fleet.roster.kept_for(task_id)
        if cell is None and not self._queue:
            cell = fleet.roster.next_free()
        if cell is not None:
            if fleet.layout.spares:
                asyncio.get_running_loop().call_soon(self._dispatch)
            return self._grant(cell, task_id)
        return await self._queue.wait(
            task_id,
            wait_s,
            too_late=lambda: too_late(self.status(), wait_s, fleet.backoff.error),
            joined=self._dispatch,
            give_back=self._give_back,
        )

    async def rollback(self, slot: Slot, snapshot: Snapshot) -> None:
        """Give a leased slot the files of a snapshot; its processes end. If that fails, the slot is
        released.

        Raises:
            StaleLeaseError: the slot was released, or its lease expired.
            SpecError: the snapshot is of another engine or image.
            UnsupportedOptionError: slots share containers, or the engine has no snapshots.
        """
        fleet = self._fleet
        await self._begin_from(fleet, slot, await self._find_base(fleet, snapshot))

    async def release(self, slot: Slot, *, reset_workspace: bool = True) -> None:
        """Release a slot; its processes end and it is reset before its next lease. Does not wait
        for that.

        Args:
            slot: what :meth:`acquire` returned.
            reset_workspace: False keeps the slot with its files and processes for the next acquire
                of the same task. It is reset when another acquire needs a slot, or after
                ``idle_timeout_s``.

        Raises:
            StaleLeaseError: the slot was released before, its lease expired, or it does not belong
                to this pool.
        """
        grant = self._grants.find(slot)
        if not reset_workspace and grant.verdict is None and not grant.cell.member.draining:
            self._keep(grant)
        else:
            self._end_lease(grant, lambda: stale(slot, "was released"))
        self._dispatch()

    @asynccontextmanager
    async def lease(
        self,
        task_id: str | None = None,
        *,
        timeout_s: float | None = None,
        base: Snapshot | str | None = None,
    ) -> AsyncIterator[Lease]:
        """Lease a slot for a block, then release and reset it; see :meth:`acquire` for arguments
        and errors.
        """
        slot = await self.acquire(task_id, timeout_s=timeout_s, base=base)
        try:
            yield Lease(self, slot)
        finally:
            await self.release_if_held(slot)

    def lease_of(self, slot: Slot) -> Lease:
        """Return the lease of a slot handle, bound to this pool.

        Raises:
            StaleLeaseError: the slot was released, or its lease expired.
        """
        self._grants.find(slot)
        return Lease(self, slot)

    async def execute(
        self,
        slot: Slot,
        tool: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        policy: ToolPolicy | None = None,
    ) -> ExecutionResult:
        """Call a tool in a slot; the calls of one slot run one after another, in the order they
        came.

        Args:
            slot: what :meth:`acquire` returned.
            tool: the tool's name.
            args: the tool's arguments; not trusted.
            timeout_s: maximum seconds for the call; None leaves it to ``args`` and the policy.
            policy: limits and rights; None means the config's ``tools``.

        Raises:
            StaleLeaseError: the slot was released, or its lease expired.
            SandboxLostError: the slot's container ended.
        """
        policy = policy or self.config.tools
        return await self.run(
            slot, lambda slot_exec: call_tool(slot_exec, tool, args, timeout_s, policy)
        )

    async def run(self, slot: Slot, work: Callable[[SlotExec], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` with the slot's :class:`SlotExec`; it is cancelled when the lease ends.

        Raises:
            StaleLeaseError: the slot was released, or its lease expired.
            SandboxLostError: the slot's container ended.
        """
        fleet = self._fleet
        grant = self._grants.good(slot)
        try:
            return await grant.run(work(grant.cell.slot_exec))
        except (ContainerLostError, ContainerStateError) as error:
            fleet.lose(grant.cell.member, str(error))
            verdict = grant.verdict or self._closed_error
            raise verdict() from error

    def status(self) -> PoolStatus:
        """Return the pool's present status."""
        if self._fleet_or_none is None:
            return PoolStatus(name=self.config.name, state=self._state)
        status = self._fleet_or_none.status()
        return attrs.evolve(status, state=self._state, waiting=len(self._queue), lost=self._lost)

    def shrink(self) -> None:
        """End all unused containers, even below the minimum; the minimum returns with the next
        acquire.
        """
        self._fleet.shrink()

    def abandon(self) -> None:
        """End all containers and block until they have ended, in any thread; for an exit without
        :meth:`stop`.
        """
        if self._fleet_or_none is not None:
            self._fleet_or_none.abandon()

    async def settle(self) -> None:
        """Wait until every released slot is reset or quarantined."""
        await self._resets.wait()

    @property
    def engine(self) -> EngineInfo:
        """Capabilities of the slots' engine on this machine.

        Raises:
            PoolClosedError: the pool is not started.
        """
        if self._engine is None:
            raise PoolClosedError(
                f"pool {self.config.name!r} is not started; use `async with` or call start()"
            )
        return self._engine

    @property
    def _fleet(self) -> Fleet:
        if self._state == "new":
            raise PoolClosedError(
                f"pool {self.config.name!r} is not started; use `async with` or call start()"
            )
        if self._state != "open" or self._fleet_or_none is None:
            raise self._closed_error()
        return self._fleet_or_none

    @property
    def keeps_files(self) -> bool:
        """Whether the files of slots can be kept: the engine has snapshots, and each slot has a
        container of its own.
        """
        return self.engine.snapshots and self._fleet.layout.isolation == "container"

    def check_keeps_files(self) -> None:
        """Check that the files of slots can be kept.

        Raises:
            UnsupportedOptionError: they cannot.
        """
        engine = self._runtime.name
        if not self.engine.snapshots:
            raise UnsupportedOptionError(engine, "base", "it has no snapshots; leave base at None")
        if not self.keeps_files:
            why = "slots of this pool share containers; set slots_per_container to 1"
            raise UnsupportedOptionError(engine, "base", why)

    async def _find_base(self, fleet: Fleet, base: Snapshot | str) -> Snapshot:
        self.check_keeps_files()
        if isinstance(base, str):
            base = await asyncio.to_thread(self._runtime.snapshots.find, base)
        # it may ask the engine
        await asyncio.to_thread(base.check_fits, self._runtime.name, fleet.layout.spec.image)
        return base

    async def _begin_from(self, fleet: Fleet, slot: Slot, base: Snapshot) -> None:
        """Give a slot that was just leased the files of a snapshot; release it if that fails."""
        grant = self._grants.good(slot)
        try:
            await grant.run(fleet.begin_from(grant.cell, base))
        except BaseException:
            await self.release_if_held(slot)
            raise

    def _grant(self, cell: Cell, task_id: str) -> Slot:
        slot = Slot(
            slot_id=cell.slot_exec.slot_id,
            generation=cell.generation,
            task_id=task_id,
            profile=self.config.name,
            workspace=cell.slot_exec.workspace,
            container=cell.member.container.name,
        )
        cell.state = CellState.LEASED
        cell.task_id = task_id
        cell.generation += 1
        grant = Grant(slot=slot, cell=cell)
        if (timeout_s := self.config.lease_timeout_s) is not None:
            grant.timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, grant)
        self._grants.add(grant)
        log.debug(
            "slot acquired",
            pool=self.config.name,
            slot=slot.slot_id,
            task=task_id,
            generation=slot.generation,
        )
        return slot

    def _dispatch(self) -> None:
        """Lease free slots to waiters in order; fail all waiters if containers cannot start."""
        fleet = self._fleet_or_none
        if fleet is None or self._state != "open":
            return
        while self._queue:
            task_id = self._queue.first_task()
            cell = fleet.roster.kept_for(task_id) or fleet.roster.next_free()
            if cell is None:
                break
            self._queue.serve(self._grant(cell, task_id))
        fleet.balance(len(self._queue))
        self._reset_kept(fleet)
        if (
            fleet.backoff.is_news
            and fleet.backoff.is_hopeless
            and not fleet.starting
            and not fleet.roster.serving()
        ):
            fleet.backoff.is_news = False
            error = fleet.backoff.error
            self._queue.fail_all(lambda: cannot_start(self.config.name, error))

    def _reset_kept(self, fleet: Fleet) -> None:
        """Reset slots kept for a task if another acquire needs them, their time is over, or their
        container drains.
        """
        kept = sorted(fleet.roster.cells(CellState.KEPT), key=lambda cell: cell.kept_since)
        missing = len(self._queue) - fleet.coming() if kept else 0
        patience_s = self.config.idle_timeout_s
        for number, cell in enumerate(kept):
            waited_s = asyncio.get_running_loop().time() - cell.kept_since
            if (
                number < missing
                or cell.member.draining
                or (patience_s is not None and waited_s > patience_s)
            ):
                self._begin_reset(cell)

    def _keep(self, grant: Grant) -> None:
        grant.verdict = lambda: stale(grant.slot, "was released")
        self._grants.remove(grant)
        grant.cell.state = CellState.KEPT
        grant.cell.kept_since = asyncio.get_running_loop().time()
        for call in tuple(grant.running):
            call.cancel()

    def _give_back(self, slot: Slot) -> None:
        """Take back a slot that its waiter did not use."""
        with suppress(StaleLeaseError):
            grant = self._grants.find(slot)
            self._grants.remove(grant)
            if grant.verdict is None:
                grant.cell.state = CellState.FREE
            self._dispatch()

    def _expire(self, grant: Grant) -> None:
        log.warning(
            "lease expired", pool=self.config.name, slot=grant.slot.slot_id, task=grant.slot.task_id
        )
        self._end_lease(
            grant, lambda: stale(grant.slot, f"expired after {self.config.lease_timeout_s:g} s")
        )
        self._dispatch()

    def _end_lease(self, grant: Grant, verdict: Callable[[], HyperRuntimeError]) -> None:
        self._grants.remove(grant)
        log.debug(
            "slot released", pool=self.config.name, slot=grant.slot.slot_id, task=grant.slot.task_id
        )
        if grant.verdict is None:
            grant.verdict = verdict
            self._begin_reset(grant.cell, grant)

    def _begin_reset(self, cell: Cell, grant: Grant | None = None) -> None:
        cell.state = CellState.CLEANING

        async def reset() -> None:
            try:
                if grant is not None:
                    await grant.end_calls()
                await cell.slot_exec.close()
            except Exception as error:  # noqa: BLE001 - the reset below ends and checks everything itself
                log.warning(
                    "calls not ended",
                    pool=self.config.name,
                    slot=cell.slot_exec.slot_id,
                    why=str(error),
                )
            if self._fleet_or_none is not None:
                await self._fleet_or_none.renew(cell)

        self._resets.start(reset())

    def _on_lost(self, member: PoolMember, why: str) -> None:
        self._lost += 1
        for grant in self._grants:
            if grant.cell.member is not member:
                continue
            grant.verdict = lambda slot=grant.slot: SandboxLostError(
                f"the container of slot {slot.slot_id} is gone ({why}), with all files of "
                f"{slot.task_id!r}; release the slot and acquire another one"
            )

    def _closed_error(self) -> HyperRuntimeError:
        return PoolClosedError(f"pool {self.config.name!r} was stopped; make another one")

    async def _stop(self) -> None:
        self._state = "stopped"
        self._queue.fail_all(self._closed_error)
        grants = tuple(self._grants)
        for grant in grants:
            self._grants.remove(grant)
            grant.verdict = grant.verdict or self._closed_error
        closing = [self._fleet_or_none.close()] if self._fleet_or_none is not None else []
        await asyncio.gather(*(grant.end_calls() for grant in grants), *closing)
        await self.settle()
        log.info("pool stopped", pool=self.config.name)
