"""A lease as its holder sees it: a value."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Slot:
    """The right to use one private workspace, until it is released or expires; a pool refuses a stale one.

    Attributes:
        slot_id: the place's name, of no other place on this machine.
        generation: how often the place had been leased before; with ``slot_id`` it names this lease.
        task_id: for whom it was acquired.
        profile: name of the pool.
        workspace: absolute path of its directory inside the container.
        container: the container's name.
    """

    slot_id: str
    generation: int
    task_id: str
    profile: str
    workspace: str
    container: str

    @property
    def workspace_dir(self) -> str:
        """The workspace by the name that other systems give it."""
        return self.workspace
