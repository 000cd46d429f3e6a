"""The containers of a pool: start, spares, shrinking, recycling, health checks, replacement.

The code runs on the pool's event loop; blocking calls run in threads. No lock is held during a
blocking call.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable

from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.concurrency.blocking import RESETS, STARTS, blocking
from hyperruntime.errors import PoolClosedError
from hyperruntime.layers.snapshots.snapshot import Snapshot
from hyperruntime.logs import get_logger
from hyperruntime.pool.roster import Cell, CellState, PoolMember, Roster, StartBackoff, StartLimit
from hyperruntime.pool.slots.isolation import make_isolation
from hyperruntime.pool_values.config import PoolConfig, PoolLayout
from hyperruntime.pool_values.results import PoolStatus
from hyperruntime.runtime import Runtime

log = get_logger(__name__)

_TICK_S = 0.2
_PATIENCE_S = 10.0  # upper bound on the timeout of a health check


class Fleet:
    """The containers of one pool.

    Attributes:
        layout: the pool's configuration, resolved for this engine.
        roster: the containers that have started and not ended.
        starting: number of containers that are starting.
        backoff: the failures to start since the last success.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: PoolConfig,
        layout: PoolLayout,
        *,
        changed: Callable[[], None],
        lost: Callable[[PoolMember, str], None],
    ) -> None:
        """Begin without containers.

        Args:
            runtime: starts the containers.
            config: the pool's configuration.
            layout: the configuration, resolved for this engine.
            changed: called when a slot may be free, or a start has failed.
            lost: called with the container and the reason when a container ended by itself.
        """
        self.roster = Roster(config.max_containers)
        self.backoff = StartBackoff()
        self._limit = StartLimit(config.max_starting)
        self._runtime = runtime
        self._config = config
        self.layout = layout
        self._isolation = make_isolation(config, layout, runtime.name)
        self._changed = changed
        self._lost = lost
        self.starting = self._closing = 0
        self._waiting = 0
        self._asleep = False
        self._owed = 0  # containers to start in place of those that a release used up
        self._tasks = BackgroundTasks(f"pool {config.name!r}")
        self._closed = False
        self._open: set[PoolMember] = set()
        self._lock = threading.Lock()  # for _closed and _open; never held during a blocking call
        self._watching: asyncio.Task[None] | None = None

    def status(self) -> PoolStatus:
        """Return the status, without waiting acquires and lost containers."""
        counts = {state: sum(1 for _ in self.roster.cells(state)) for state in CellState}
        serving = self.roster.serving()
        taken = sum(
            member.count(CellState.LEASED) + member.count(CellState.QUARANTINED)
            for member in serving
        )
        total = sum(len(member.cells) for member in serving)
        return PoolStatus(
            name=self._config.name,
            state="open",
            isolation=self.layout.isolation,
            reset=self.layout.reset,
            containers=len(self.roster.members),
            draining=len(self.roster.members) - len(serving),
            starting=self.starting,
            max_containers=self._config.max_containers,
            slots_per_container=self.layout.slots,
            total_slots=total,
            free=sum(member.count(CellState.FREE) for member in serving),
            available=total - taken,
            leased=counts[CellState.LEASED],
            kept=counts[CellState.KEPT],
            cleaning=counts[CellState.CLEANING],
            quarantined=counts[CellState.QUARANTINED],
            error=str(self.backoff.error or ""),
        )

    async def start(self) -> None:
        """Start the minimum of containers, several at the same time.

        Raises:
            HyperRuntimeError: a container cannot be started; :meth:`close` ends the others.
        """
        while len(self.roster.serving()) < self._config.min_containers and not self._closed:
            self.balance(0)
            await asyncio.wait((*self._tasks,), return_when=asyncio.FIRST_COMPLETED)
            if self.backoff.error is not None:
                raise self.backoff.error
        if self._closed:
            raise PoolClosedError(f"pool {self._config.name!r} was stopped while it was starting")

    def coming(self) -> int:
        """Return how many slots will be free soon: in starting containers, or after their reset."""
        return self.starting * self.layout.slots + sum(
            m.count(CellState.CLEANING) for m in self.roster.serving()
        )

    def balance(self, waiting: int) -> None:
        """End unneeded containers and start needed ones; the pool calls this after every change.

        Args:
            waiting: number of waiting acquires.
        """
        if self._closed:
            return
        self._waiting = waiting
        now = asyncio.get_running_loop().time()
        self._retire(now)
        for member in tuple(self.roster.members):
            if member.draining and member.is_idle:
                self.roster.members.remove(member)
                self._closing += 1
                self._tasks.start(self._recycle(member))
        if now >= self.backoff.not_before:
            for _ in range(self._to_start(waiting)):
                self._owed = max(0, self._owed - 1)
                self.starting += 1
                self._tasks.start(self._start_one())
        if self._is_in_use and self._watching is None:
            self._watching = self._tasks.start(self._watch())

    def shrink(self) -> None:
        """End all unused containers, even below the minimum; the minimum returns with the next
        acquire.
        """
        self._asleep = True
        for member in self.roster.serving():
            if not member.is_busy:
                self.drain(member, "its pool is not used")
        self.balance(self._waiting)

    @property
    def _is_in_use(self) -> bool:
        return bool(self.roster.members or self.starting or self._closing or self._waiting)

    def _to_start(self, waiting: int) -> int:
        serving = self.roster.serving()
        supply = self.coming() + sum(member.count(CellState.FREE) for member in serving)
        wanted = max(0, -(-(waiting - supply) // self.layout.slots))
        if waiting or self.roster.busy():
            self._asleep = False
        least = 0 if self._asleep else self._config.min_containers
        self._owed = max(
            0, min(self._owed, self._config.max_containers - len(serving) - self.starting)
        )
        wanted = max(wanted, self._owed, least - len(serving) - self.starting)
        if self.roster.busy():
            unused = sum(not member.is_busy for member in serving) + self.starting
            wanted = max(wanted, self.layout.spares - unused)
        room = (
            self._config.max_containers
            + self.layout.spares
            - len(self.roster.members)
            - self.starting
            - self._closing
        )
        return max(0, min(wanted, room, self._limit.now - self.starting))

    def _retire(self, now: float) -> None:
        """Drain the containers that are too old, then those that are idle and not needed."""
        lifetime = self._config.max_lifetime_s
        timeout = self._config.idle_timeout_s
        busy = self.roster.busy()
        kept = max(
            0 if self._asleep else self._config.min_containers,
            busy + (self.layout.spares if busy else 0),
        )
        surplus = len(self.roster.serving()) - kept
        for member in self.roster.serving():
            if lifetime is not None and now - member.born >= lifetime:
                surplus -= 1
                self.drain(member, "its lifetime is over")
            elif member.is_busy:
                member.idle_since = now
            elif timeout is not None and surplus > 0 and now - member.idle_since >= timeout:
                surplus -= 1
                self.drain(member, "it was idle")

    def drain(self, member: PoolMember, why: str) -> None:
        """Lease no more slots of a container; it ends after the last release.

        Args:
            member: the container.
            why: the reason, for the log.
        """
        if not member.draining:
            member.draining = why
            log.info(
                "container draining",
                pool=self._config.name,
                container=member.container.name,
                why=why,
            )

    def lose(self, member: PoolMember, why: str) -> None:
        """Record that a container ended by itself; its leases are lost, and a new container may
        replace it.

        Args:
            member: the container; it is ignored if it is no longer in the roster.
            why: the reason, for the log and for the errors of its leases.
        """
        if member not in self.roster.members:
            return
        member.lost = True
        self.roster.members.remove(member)
        log.warning(
            "container lost", pool=self._config.name, container=member.container.name, why=why
        )
        self._tasks.start(self._end(member))
        self._lost(member, why)
        self._changed()

    async def renew(self, cell: Cell) -> None:
        """Reset a slot after a lease, or drain its container."""
        member = cell.member
        if self._closed or member.lost:
            return
        if self.layout.reset == "replace":
            cell.state = CellState.QUARANTINED
            self._owed += 1
            self.drain(member, "its slot was released")
        else:
            await self._clean(cell)
        self._changed()

    async def begin_from(self, cell: Cell, base: Snapshot) -> None:
        """Give a leased slot the files of a snapshot.

        Raises:
            HyperRuntimeError: its container cannot be rolled back, and must be reset.
        """
        await cell.slot_exec.close()  # it may have been kept with shells
        cell.slot_exec = await blocking(RESETS, lambda: self._isolation.renew(cell.slot_exec, base))

    async def _clean(self, cell: Cell) -> None:
        member = cell.member
        try:
            cell.slot_exec = await blocking(RESETS, lambda: self._isolation.renew(cell.slot_exec))
        except Exception as error:  # noqa: BLE001 - after any error the slot may not be clean
            if self._closed or member.lost:
                return
            cell.state = CellState.QUARANTINED
            log.warning(
                "slot quarantined",
                pool=self._config.name,
                slot=cell.slot_exec.slot_id,
                why=str(error),
            )
            self.drain(member, f"a slot could not be made clean: {error}")
        else:
            cell.state = CellState.FREE

    async def close(self) -> None:
        """End all containers, including those that are starting."""
        with self._lock:
            self._closed = True
            members = tuple(self._open)
        if self._watching is not None:
            self._watching.cancel()
        ended = await asyncio.gather(
            *(self._end(member) for member in members), return_exceptions=True
        )
        await self._tasks.wait()
        self.roster.members.clear()
        for error in ended:
            if error is not None:
                raise error

    def abandon(self) -> None:
        """End all containers and block until they have ended; for a program that exits without
        :meth:`close`.

        Safe in any thread.
        """
        with self._lock:
            self._closed = True
            members = tuple(self._open)
        for member in members:
            self._end_now(member)

    async def _start_one(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            member = await blocking(STARTS, self._open_member)
        except Exception as error:  # noqa: BLE001 - waiting acquires must get any error
            if self._closed:
                return
            delay_s = self.backoff.note(error, loop.time())
            self._limit.note_failure()
            log.warning(
                "container not started", pool=self._config.name, why=str(error), retry_in_s=delay_s
            )
        else:
            self.backoff = StartBackoff()
            member.born = member.idle_since = member.asked = loop.time()
            self.roster.members.append(member)
            name = member.container.name
            duration_s = loop.time() - began
            self._limit.note(duration_s, self.starting)
            log.info(
                "container started", pool=self._config.name, container=name, duration_s=duration_s
            )
        finally:
            self.starting -= 1
            self._changed()

    def _open_member(self) -> PoolMember:
        """Start a container and create its slots; remove it if that fails. Blocks."""
        member = PoolMember(container=self._runtime.container(self.layout.spec))
        try:
            with self._lock:
                if self._closed:
                    raise PoolClosedError(
                        f"pool {self._config.name!r} was stopped while a container was starting"
                    )
                self._open.add(member)
            member.cells = [
                Cell(member=member, slot_exec=slot_exec)
                for slot_exec in self._isolation.prepare(member.container)
            ]
        except BaseException:
            self._end_now(member)
            raise
        return member

    async def _recycle(self, member: PoolMember) -> None:
        try:
            await self._end(member)
        finally:
            self._closing -= 1
            name = member.container.name
            why = member.draining
            log.info("container recycled", pool=self._config.name, container=name, why=why)
            self._changed()

    async def _end(self, member: PoolMember) -> None:
        await blocking(RESETS, lambda: self._end_now(member))

    def _end_now(self, member: PoolMember) -> None:
        try:
            member.container.close()
        finally:
            for cell in member.cells:
                self._isolation.forget(cell.slot_exec)
            with self._lock:
                self._open.discard(member)

    async def _watch(self) -> None:
        try:
            while not self._closed and self._is_in_use:
                await asyncio.sleep(_TICK_S)
                for member in tuple(self.roster.members):
                    if not member.container.is_alive:
                        self.lose(member, member.container.watchdog_verdict or "it ended")
                    else:
                        self._ask_idle(member)
                self._changed()
        finally:
            self._watching = None

    def _ask_idle(self, member: PoolMember) -> None:
        """Start a health check of an unused container if one is due."""
        interval = self._config.health_interval_s
        now = asyncio.get_running_loop().time()
        if interval is None or member.draining or not member.is_idle:
            return
        if now - max(member.asked, member.idle_since) < interval:
            return
        member.asked = math.inf  # one check at a time: it may take longer than the interval

        async def ask() -> None:
            try:
                answers = await blocking(
                    RESETS, lambda: member.container.responds(min(interval, _PATIENCE_S))
                )
            except Exception as error:  # noqa: BLE001 - the check failed, not the container; it is repeated
                log.warning("container not asked", container=member.container.name, why=str(error))
                answers = True
            finally:
                member.asked = asyncio.get_running_loop().time()
            # a user of it notices by a command
            if not answers and not self._closed and member.is_idle:
                self.lose(member, "it did not answer")

        self._tasks.start(ask())
