"""Where the items of a run are made."""

from __future__ import annotations

from typing import Protocol, TypeVar

Task_contra = TypeVar("Task_contra", contravariant=True)
Made_co = TypeVar("Made_co", covariant=True)


class Workers(Protocol[Task_contra, Made_co]):
    """Make items, on this machine or on the nodes of a cluster.

    Attributes:
        capacity: upper bound on items that are made at once.
    """

    @property
    def capacity(self) -> int: ...  # noqa: D102 - an attribute

    async def run(self, task: Task_contra) -> Made_co:
        """Make one attempt at an item; what is lost with a node is made again on another one."""
        ...
