"""The nodes that work for a pool or a run, and which of them gets the next work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import attrs

from hyperruntime.cluster.head import Node

_NEAR_KEPT = 256  # keys of work that a node remembers


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
