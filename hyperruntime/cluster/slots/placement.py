"""Which node gets a lease: the one with most free slots, or one that had the same work before."""

from __future__ import annotations

import asyncio

import attrs

from hyperruntime.cluster.head import Node
from hyperruntime.remote.sandbox import RemoteSandbox

_NEAR_KEPT = 256  # keys of work that a node remembers


@attrs.define(eq=False)
class Member:
    """A node with its pool.

    Attributes:
        node: the node.
        slots: how many of its slots may be leased at once.
        leased: how many are, or are being acquired.
        near: keys of work that ran there, newest last.
    """

    node: Node
    slots: int
    leased: int = 0
    near: dict[str, None] = attrs.field(factory=dict)

    @property
    def free(self) -> int:
        """Slots that may be leased now."""
        return self.slots - self.leased if self.node.lost is None and not self.node.leaving else 0

    def take(self) -> Member:
        """Count one slot as leased, and return this member; the node is in use from the first one
        on.
        """
        self.leased += 1
        if self.leased == 1:
            self.node.uses += 1
        return self

    def give_back(self) -> None:
        """Count one slot as free."""
        self.leased -= 1
        if self.leased == 0:
            self.node.uses -= 1
            self.node.idle_since = asyncio.get_running_loop().time()

    def remember(self, near: str) -> None:
        """Note that work with this key runs here."""
        if near:
            self.near.pop(near, None)
            self.near[near] = None
            while len(self.near) > _NEAR_KEPT:
                del self.near[next(iter(self.near))]


@attrs.define(eq=False)
class Grant:
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


class Placement:
    """The nodes of a pool, and which of them a lease should get.

    Attributes:
        members: the nodes that have the pool and are not lost.
    """

    def __init__(self) -> None:
        """Know no node yet."""
        self.members: list[Member] = []
        self._kept: dict[str, Member] = {}

    def choose(self, task_id: str, near: str) -> Member | None:
        """Return where a task's lease should be, or None if no slot is free.

        Args:
            task_id: a task gets the node on which it kept its slot.
            near: key of the work, or "".
        """
        kept = self._kept.pop(task_id, None)
        if kept is not None and kept.free > 0:
            return kept
        free = [member for member in self.members if member.free > 0]
        close = [member for member in free if near and near in member.near]
        return max(close or free, key=lambda member: member.free, default=None)

    def keep(self, task_id: str, member: Member) -> None:
        """Note that a task's slot waits for it on a node."""
        self._kept[task_id] = member

    def lose(self, member: Member) -> bool:
        """Forget a node; return whether it was known."""
        if member not in self.members:
            return False
        self.members.remove(member)
        self._kept = {task: kept for task, kept in self._kept.items() if kept is not member}
        return True
