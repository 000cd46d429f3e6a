"""One pool over the nodes of a cluster. See docs/design/cluster.md#slots-on-nodes."""

from __future__ import annotations

import asyncio
import itertools
import math
import pickle
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import attrs

from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.head import Node
from hyperruntime.cluster.node_workers import Member, roomiest
from hyperruntime.cluster.slots.pool_service import to_json
from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.errors import (
    HyperRuntimeError,
    NodeLostError,
    PoolClosedError,
    SlotTimeoutError,
    StaleLeaseError,
    UnsupportedOptionError,
)
from hyperruntime.layers.snapshots.snapshot import Snapshot
from hyperruntime.logs import get_logger
from hyperruntime.pool.pooled_sandbox import LeasingPool
from hyperruntime.pool.wait_queue import WaitQueue, cannot_start
from hyperruntime.pool_values.config import DEFAULT_SLOTS, PoolConfig, ToolPolicy
from hyperruntime.pool_values.results import ExecutionResult, PoolStatus, Slot
from hyperruntime.remote.calls import Calls
from hyperruntime.remote.sandbox import RemoteSandbox
from hyperruntime.runs.retry import Losses
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import Answer

log = get_logger(__name__)

_numbers = itertools.count(1)


@attrs.define(eq=False)
class _Grant:
    """One lease.

    Attributes:
        member: the node of its slot.
        name: identifies it on that node.
        sandbox: its sandbox.
        expiry: ends it when its time is up; None without a limit.
    """

    member: Member
    name: str
    sandbox: RemoteSandbox
    expiry: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Let its sandbox ask nothing more, and cancel its expiry."""
        self.sandbox.close()
        if self.expiry is not None:
            self.expiry.cancel()


class ClusterPool(LeasingPool):
    """A pool of equal slots on the nodes of a cluster, with the interface of
    :class:`~hyperruntime.pool.pool.SlotPool`.

    All methods run on the event loop of the cluster. The limits of the configuration are those of
    each node.

    Attributes:
        config: the configuration of the pool on each node.

    Example:
        >>> async def in_slot(cluster, config, args):
        ...     async with hr.ClusterPool(cluster, config) as pool, pool.lease() as lease:
        ...         return await lease.exec(args)
        >>> cluster = hr.Cluster(hr.ClusterConfig(max_nodes=2))
        >>> hr.ClusterPool(cluster, hr.PoolConfig(spec=spec)).config.max_containers  # per node
        5
    """

    def __init__(self, cluster: Cluster, config: PoolConfig) -> None:
        """Store the configuration; nothing starts yet.

        Args:
            cluster: open until the pool has stopped.
            config: the configuration of the pool on each node.
        """
        self.config = config
        self._cluster = cluster
        self._name = f"{config.name}-{next(_numbers)}"
        self._state = "new"
        self._members: list[Member] = []  # whose nodes have the pool, and are not lost
        self._kept: dict[str, Member] = {}  # where the slots of tasks wait for them
        self._joining = BackgroundTasks(f"pool {config.name!r}")
        self._beside = BackgroundTasks(f"pool {config.name!r}")
        self._grants: dict[tuple[str, int], _Grant] = {}
        self._queue: WaitQueue[Member] = WaitQueue()
        self._near: dict[str, str] = {}
        self._lost = 0
        self._error: HyperRuntimeError | None = None

    async def start(self) -> None:
        """Use the nodes of the cluster; ask for one if there is none, and wait for its pool.

        Raises:
            PoolClosedError: the pool was started before.
            ClusterError: no node can be started.
            HyperRuntimeError: the pool of the first node does not start.
        """
        if self._state != "new":
            raise PoolClosedError(f"pool {self.config.name!r} was started before; make another one")
        self._state = "open"
        self._cluster.on_node(self._on_node)
        try:
            while not self._members:
                if self._joining:
                    await asyncio.wait((*self._joining,), return_when=asyncio.FIRST_COMPLETED)
                elif self._cluster.nodes():
                    raise self._error or PoolClosedError(f"pool {self.config.name!r} has no node")
                else:
                    self._cluster.want(1)  # the first one, or one in place of a lost one
                    await self._cluster.wait_for_node()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End waiting acquires and the pools of all nodes; may be called again."""
        self._state = "stopped"
        self._queue.fail_all(self._closed)
        for task in self._joining:
            task.cancel()
        for grant in self._grants.values():
            grant.close()
        members, self._members = self._members, []
        with suppress(NodeLostError):
            await asyncio.gather(
                *(self._call(member, "pool.stop") for member in members if member.node.lost is None)
            )
        self._cluster.off_node(self._on_node)

    async def acquire(
        self,
        task_id: str | None = None,
        *,
        timeout_s: float | None = None,
        near: str = "",
        base: Snapshot | str | None = None,
    ) -> Slot:
        """Lease a slot on the node with most free ones, first come first served; the cluster grows
        if none is free.

        Args:
            task_id: the task of the lease; None means a random name. A task gets the slot that it
                kept at its release.
            timeout_s: how long to wait; 0 means not at all, None the config's
                ``acquire_timeout_s``.
            near: a key of work that shares caches, such as its repository; a node that had it is
                preferred.
            base: refused unless None.

        Raises:
            SpecError: ``timeout_s`` or ``task_id`` is invalid.
            UnsupportedOptionError: ``base`` is given.
            SlotTimeoutError: no slot became free in time.
            PoolStartError: no container can be started; the message says why.
            PoolClosedError: the pool is not started, or was stopped.
            LostTooOftenError: ten nodes were lost one after another while they acquired it.
        """
        if base is not None:
            why = "a snapshot belongs to one machine; use a SlotPool there, or leave base at None"
            raise UnsupportedOptionError("a cluster", "base", why)
        task_id, wait_s = self._asked(task_id, timeout_s)
        deadline = asyncio.get_running_loop().time() + wait_s
        losses = Losses()
        while True:
            member = await self._reserve(
                task_id, near, max(0.0, deadline - asyncio.get_running_loop().time())
            )
            left_s = max(0.0, deadline - asyncio.get_running_loop().time())
            name = str(next(_numbers))
            try:
                answer = await self._call(
                    member, "pool.acquire", task=task_id, timeout_s=left_s, container=name
                )
            except NodeLostError as error:
                self._give_back(member)
                losses.count(error)
                continue
            except asyncio.CancelledError:
                self._end_soon(member, name)
                raise
            except BaseException:
                self._give_back(member)
                raise
            member.remember(near)
            slot = member.node.peer.checked(Slot, answer.value, "pool.acquire")
            slot = attrs.evolve(slot, slot_id=f"{member.node.name}/{slot.slot_id}")
            sandbox = RemoteSandbox(self, slot, Calls(member.node.peer, name))
            grant = self._grants[slot.slot_id, slot.generation] = _Grant(member, name, sandbox)
            if (expires_s := self.config.lease_timeout_s) is not None:
                grant.expiry = asyncio.get_running_loop().call_later(expires_s, self._expire, slot)
            return slot

    async def release(self, slot: Slot, *, reset_workspace: bool = True) -> None:
        """Release a slot; see :meth:`SlotPool.release`. Nothing is done for a slot whose node is
        lost.
        """
        grant = self._end_grant(slot)
        try:
            with suppress(NodeLostError):
                await self._call(
                    grant.member, "pool.release", container=grant.name, reset=reset_workspace
                )
                if not reset_workspace:
                    self._kept[slot.task_id] = grant.member
        except asyncio.CancelledError:  # the node may not have begun
            self._end_soon(grant.member, grant.name)
            raise
        except BaseException:
            self._give_back(grant.member)
            raise
        self._give_back(grant.member)

    @asynccontextmanager
    async def lease(
        self,
        task_id: str | None = None,
        *,
        timeout_s: float | None = None,
        near: str = "",
        base: Snapshot | str | None = None,
    ) -> AsyncIterator[RemoteSandbox]:
        """Lease a slot for a block, then release and reset it; see :meth:`acquire` for arguments
        and errors.
        """
        slot = await self.acquire(task_id, timeout_s=timeout_s, near=near, base=base)
        try:
            yield self.lease_of(slot)
        finally:
            await self.release_if_held(slot)

    def lease_of(self, slot: Slot) -> RemoteSandbox:
        """Return the lease of a slot handle, bound to this pool.

        Raises:
            StaleLeaseError: the slot was released.
        """
        return self._grant(slot).sandbox

    async def execute(
        self,
        slot: Slot,
        tool: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        policy: ToolPolicy | None = None,
    ) -> ExecutionResult:
        """Call a tool in a slot; see :meth:`SlotPool.execute`.

        Raises:
            StaleLeaseError: the slot was released, or its lease expired.
            SandboxLostError: the slot's container or node ended.
        """
        grant = self._grant(slot)
        body = b"" if policy is None else pickle.dumps(policy)
        answer = await grant.sandbox.calls.call(
            "slot.tool", body, tool=tool, args=to_json(args), timeout_s=timeout_s
        )
        result = grant.member.node.peer.checked(ExecutionResult, answer.value, "slot.tool")
        return attrs.evolve(result, slot_id=slot.slot_id)

    async def statuses(self) -> dict[str, PoolStatus]:
        """Return the status of the pool of each node, by the node's name."""

        async def ask(member: Member) -> PoolStatus | None:
            with suppress(NodeLostError):
                return await member.node.peer.ask(PoolStatus, "pool.status", {"pool": self._name})
            return None

        members = tuple(self._members)  # others may join meanwhile
        found = await asyncio.gather(*(ask(member) for member in members))
        return {
            member.node.name: status
            for member, status in zip(members, found, strict=True)
            if status is not None
        }

    def status(self) -> PoolStatus:
        """Return what the head knows of the pool; ``lost`` counts leases that were lost with their
        node.
        """
        slots = sum(member.slots for member in self._members)
        leased = sum(grant.member.node.lost is None for grant in self._grants.values())
        return PoolStatus(
            name=self.config.name,
            state=self._state,
            total_slots=slots,
            free=sum(member.free for member in self._members),
            available=slots - leased,
            leased=leased,
            waiting=len(self._queue),
            lost=self._lost,
            error=str(self._error or ""),
        )

    def shrink(self) -> None:
        """End all unused containers of all nodes; see :meth:`SlotPool.shrink`."""
        for member in self._members:
            self._keep(self._call(member, "pool.shrink"))

    def _on_node(self, node: Node) -> None:
        if self._state == "open":
            self._joining.start(self._join(node)).add_done_callback(self._joined)

    def _joined(self, _: asyncio.Task[None]) -> None:
        if self._state == "open":
            self._dispatch()

    async def _join(self, node: Node) -> None:
        try:
            with node.in_use():  # it is not given back as idle meanwhile
                await self._cluster.give_image(node, self.config.spec.image)
                status = await node.peer.ask(
                    PoolStatus, "pool.start", {"pool": self._name}, pickle.dumps(self.config)
                )
                slots = self._slots_of(node, status)
        except HyperRuntimeError as error:
            self._error = error
            log.warning(
                "pool not started on node", pool=self.config.name, node=node.name, error=str(error)
            )
            if not self._members and not isinstance(error, NodeLostError):
                self._queue.fail_all(partial(cannot_start, self.config.name, error))
            return
        member = Member(node, slots)
        self._members.append(member)
        node.on_lost(lambda error: self._on_lost(member))
        log.info("pool started on node", pool=self.config.name, node=node.name, slots=member.slots)

    def _slots_of(self, node: Node, status: PoolStatus) -> int:
        """Return how many slots a node has; raise NodeLostError if it has none, or more than it was
        asked for.
        """
        each = status.slots_per_container
        most = self.config.slots_per_container or DEFAULT_SLOTS
        with node.peer.reading():
            if not (0 < status.max_containers <= self.config.max_containers and 0 < each <= most):
                said = f"{status.max_containers} containers with {each} slots each"
                raise PeerFaultError(f"its pool has {said}, which is not what it was asked for")
        return status.max_containers * each

    def _on_lost(self, member: Member) -> None:
        if member in self._members:
            self._members.remove(member)
            self._kept = {task: kept for task, kept in self._kept.items() if kept is not member}
            self._lost += sum(grant.member is member for grant in self._grants.values())
            self._dispatch()

    def _choose(self, task_id: str, near: str) -> Member | None:
        """Return the node on which a task kept its slot, or the best one; None if no slot is free.

        Args:
            task_id: the task.
            near: key of the work, or "".
        """
        kept = self._kept.pop(task_id, None)
        return kept if kept is not None and kept.free > 0 else roomiest(self._members, near)

    async def _reserve(self, task_id: str, near: str, timeout_s: float) -> Member:
        """Return a member of which one slot is now counted as leased."""
        if self._state != "open":
            raise self._closed()
        if not self._queue and (member := self._choose(task_id, near)) is not None:
            return member.take()
        self._near[task_id] = near
        try:
            return await self._queue.wait(
                task_id,
                timeout_s,
                too_late=lambda: self._too_late(timeout_s),
                joined=self._dispatch,
                give_back=self._give_back,
            )
        finally:
            self._near.pop(task_id, None)

    def _give_back(self, member: Member) -> None:
        member.give_back()
        self._dispatch()

    def _end_soon(self, member: Member, name: str) -> None:
        """Count a slot as free after the node has ended a lease that it may have granted."""

        async def end() -> None:
            try:
                await self._call(member, "pool.forget", container=name, reset=True)
            finally:
                self._give_back(member)

        self._keep(end())

    def _keep(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work in the background; its errors are ignored."""

        async def quiet() -> None:
            with suppress(HyperRuntimeError):
                await work

        self._beside.start(quiet())

    def _dispatch(self) -> None:
        """Give free slots to waiters in order; ask for another node if some still wait."""
        while self._queue:
            task_id = self._queue.first_task()
            member = self._choose(task_id, self._near.get(task_id, ""))
            if member is None:
                members = self._members
                each = max(1, members[0].slots) if members else 1
                # those bring slots, too
                more = math.ceil(len(self._queue) / each) - len(self._joining)
                self._cluster.want(len(self._cluster.nodes()) + max(0, more))
                return
            self._queue.serve(member.take())

    def _expire(self, slot: Slot) -> None:
        log.warning("lease expired", pool=self.config.name, slot=slot.slot_id, task=slot.task_id)
        grant = self._end_grant(slot)
        self._end_soon(grant.member, grant.name)

    def _end_grant(self, slot: Slot) -> _Grant:
        grant = self._grant(slot)
        del self._grants[slot.slot_id, slot.generation]
        grant.close()
        return grant

    def _grant(self, slot: Slot) -> _Grant:
        grant = self._grants.get((slot.slot_id, slot.generation))
        if grant is None:
            raise StaleLeaseError(
                f"slot {slot.slot_id} was released, or its lease expired; acquire another one"
            )
        return grant

    async def _call(self, member: Member, method: str, **args: Any) -> Answer:  # noqa: ANN401 - JSON
        return await member.node.peer.call(method, {"pool": self._name, **args})

    def _too_late(self, timeout_s: float) -> HyperRuntimeError:
        status = self.status()
        why = (
            ""
            if self._cluster.error is None
            else f"; no more nodes can be had: {self._cluster.error}"
        )
        why += "; release slots, or raise max_nodes"
        return SlotTimeoutError(
            f"no slot of pool {status.name!r} became free within {timeout_s:g} s "
            f"({status.leased} leased on {len(self._members)} nodes, {status.waiting} "
            f"other acquires waiting){why}"
        )

    def _closed(self) -> PoolClosedError:
        return PoolClosedError(
            f"pool {self.config.name!r} is {self._state}, not open; use it inside `async with`"
        )
