"""Which node of a cluster gets the next work of a run or the next lease of a pool: the one with
most room, or one that had the same work before.

Work follows the rule of retries: what is lost with a node is done again on another one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

import attrs

from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.head import Node
from hyperruntime.errors import HyperRuntimeError, NodeLostError
from hyperruntime.logs import get_logger
from hyperruntime.runs.retry import Losses

log = get_logger(__name__)

T = TypeVar("T")
_NEAR_KEPT = 256  # keys of work that a node remembers
_LOOK_S = 0.2  # between two looks at whether the run is interrupted, or no node can be had
_NEAR_SHARE = 0.5  # of the most room, that a node with the caches of a piece of work must have


@attrs.define(eq=False)
class Member:
    """A node that works for a pool or a run.

    Attributes:
        node: the node.
        slots: how many of its slots may be leased, or how much work it may have, at once.
        leased: how many are, or are being acquired; how much work it has.
        near: keys of work that ran there, newest last.
    """

    node: Node
    slots: int
    leased: int = 0
    near: dict[str, None] = attrs.field(factory=dict)

    @property
    def is_usable(self) -> bool:
        """Whether its node takes new work."""
        return self.node.lost is None and not self.node.leaving

    @property
    def free(self) -> int:
        """Slots that may be leased now."""
        return self.slots - self.leased if self.is_usable else 0

    def take(self) -> Member:
        """Count one slot as leased, and return this member; the node is in use meanwhile."""
        self.leased += 1
        self.node.uses += 1
        return self

    def give_back(self) -> None:
        """Count one slot as free."""
        self.leased -= 1
        self.node.uses -= 1
        self.node.idle_since = asyncio.get_running_loop().time()

    def remember(self, near: str) -> None:
        """Note that work with this key runs here."""
        if near:
            self.near.pop(near, None)
            self.near[near] = None
            while len(self.near) > _NEAR_KEPT:
                del self.near[next(iter(self.near))]


def roomiest(members: Iterable[Member], near: str, *, least_share: float = 0.0) -> Member | None:
    """Return the member with most room, or None if none has any.

    Args:
        members: to choose from.
        near: key of the work; a member that had this key before is preferred, if it has room.
        least_share: how much room such a member must have, as a share of the most room.
    """
    most = max(members := tuple(members), key=lambda member: member.free, default=None)
    if most is None or most.free <= 0:
        return None
    least = max(1.0, least_share * most.free)
    close = [member for member in members if near in member.near and member.free >= least]
    return max(close, key=lambda member: member.free, default=most)


class NodeWorkers:
    """The nodes that work for a run.

    Attributes:
        each: how much work a node may have at once.
        members: the nodes that got work and are not lost.
        error: ends all work that waits for a node; None while there is none.
    """

    def __init__(self, cluster: Cluster, parallel: int, most_nodes: int) -> None:
        """Ask for no node yet.

        Args:
            cluster: asked for nodes.
            parallel: how much work there is at once.
            most_nodes: nodes at once.
        """
        self.each = math.ceil(parallel / most_nodes)
        self.members: list[Member] = []
        self.error: HyperRuntimeError | None = None
        self._cluster = cluster
        self._busy = 0
        self._changed = asyncio.Event()

    def add(self, node: Node, most: int) -> None:
        """Give work to a node; at most ``most`` at once."""
        self.members.append(Member(node, most))
        self._changed.set()

    def fail(self, error: HyperRuntimeError) -> None:
        """End all work that waits for a node with an error, unless another one did."""
        self.error = self.error or error
        self._changed.set()

    async def run(
        self,
        work: Callable[[Node, int], Awaitable[T]],
        what: str,
        *,
        faults: tuple[type[HyperRuntimeError], ...] = (),
        near: str = "",
        needs_room: bool = True,
        check: Callable[[], None] = lambda: None,
    ) -> T:
        """Do a piece of work on a node; return its result.

        Args:
            work: is given the node, and how often the work went to another one before.
            what: names the work in the log.
            faults: errors of nodes that cannot do it, and then get no more work.
            near: key of the work; see :func:`roomiest`.
            needs_room: whether it waits for a node with room.
            check: raises an error if the work should not wait for a node any more.

        Raises:
            LostTooOftenError: it was lost too often.
            ClusterError: no node can be started.
            HyperRuntimeError: nodes cannot do it; or as of ``work`` and of ``check``.
        """
        losses = Losses()
        elsewhere: tuple[type[HyperRuntimeError], ...] = (NodeLostError, *faults)
        self._busy += 1
        try:
            while True:
                member = await self._take(near, check, needs_room=needs_room)
                try:
                    return await work(member.node, losses.lost)
                except elsewhere as error:
                    if not isinstance(error, NodeLostError):
                        member.node.leave(str(error))
                    losses.count(error)
                    log.warning("done again on another node", work=what, reason=str(error))
                finally:
                    member.give_back()
                    self._changed.set()
        finally:
            self._busy -= 1

    async def _take(self, near: str, check: Callable[[], None], *, needs_room: bool) -> Member:
        """Return a member that now has one piece of work more; ask for more nodes, and wait, if
        there is none.
        """
        while True:
            check()
            if self.error is not None:
                raise self.error
            self._cluster.want(math.ceil(self._busy / self.each))
            self.members = [member for member in self.members if member.node.lost is None]
            member = roomiest(self.members, near, least_share=_NEAR_SHARE)
            if member is None and not needs_room:
                usable = (member for member in self.members if member.is_usable)
                member = max(usable, key=lambda member: member.free, default=None)
            if member is not None:
                member.remember(near)
                return member.take()
            if self._cluster.error is not None and not self._cluster.nodes():
                raise self._cluster.error
            self._changed.clear()
            with suppress(TimeoutError):
                # thousands of waiting items must not keep the head busy with looking
                async with asyncio.timeout(_LOOK_S * (1 + self._busy / 100)):
                    await self._changed.wait()
