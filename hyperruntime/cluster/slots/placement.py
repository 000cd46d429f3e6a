"""Which node gets a lease: the one with most free slots, or one that had the same work before."""

from __future__ import annotations

import asyncio

import attrs

from hyperruntime.cluster.members import Member, roomiest
from hyperruntime.remote.sandbox import RemoteSandbox


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
        return roomiest(self.members, near)

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
