"""The handle of a leased slot, a plain value."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Slot:
    """The handle of one lease, valid until it is released or expires; a pool refuses a stale handle.

    Attributes:
        slot_id: the slot's name, unique on this machine.
        generation: how often the slot was leased before; with ``slot_id`` it identifies this lease.
        task_id: the task that it was acquired for.
        profile: name of the pool.
        workspace: absolute path of the slot's directory inside the container.
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
        """The workspace, under the name that other systems use."""
        return self.workspace
