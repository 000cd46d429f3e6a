"""A leased slot in the words of programs that keep its state on it; a view, which decides nothing."""

from __future__ import annotations

import enum
from typing import Any

import attrs

from hyperruntime.pool.values.slot import Slot


class SlotState(enum.Enum):
    """What a slot is doing."""

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    EXECUTING = "executing"
    RELEASING = "releasing"
    ERROR = "error"


@attrs.define(eq=False, kw_only=True)
class BackendSlot:
    """One lease of a backend, with what its backend says of it.

    The lease itself is the value ``lease``: it is what the pool checks, so nothing that is done to this object makes
    a stale one good again.

    Attributes:
        lease: the pool's value.
        running: how many of its requests are running.
        ended: what became of it: ``ACQUIRED`` while it is held, then ``RELEASING``, ``AVAILABLE`` or ``ERROR``.
        metadata: JSON values of the holder.
    """

    lease: Slot
    running: int = 0
    ended: SlotState = SlotState.ACQUIRED
    metadata: dict[str, Any] = attrs.field(factory=dict)

    @property
    def slot_id(self) -> str:
        """The place's name, of no other place on this machine."""
        return self.lease.slot_id

    @property
    def alloc_id(self) -> str:
        """The name of the container that holds it."""
        return self.lease.container

    @property
    def container_addr(self) -> str:
        """Where the container is; it listens nowhere, so this is its name."""
        return self.lease.container

    @property
    def workspace_dir(self) -> str:
        """Absolute path of its directory inside the container."""
        return self.lease.workspace

    @property
    def trajectory_id(self) -> str | None:
        """For whom it is held; None once it is not."""
        return None if self.ended is SlotState.AVAILABLE else self.lease.task_id

    @property
    def state(self) -> SlotState:
        """What it is doing now."""
        if self.ended is SlotState.ACQUIRED and self.running:
            return SlotState.EXECUTING
        return self.ended

    @property
    def is_available(self) -> bool:
        """Whether it was given back."""
        return self.state is SlotState.AVAILABLE

    @property
    def is_acquired(self) -> bool:
        """Whether it is held, and usable."""
        return self.ended is SlotState.ACQUIRED

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "slot_id": self.slot_id,
            "alloc_id": self.alloc_id,
            "container_addr": self.container_addr,
            "workspace_dir": self.workspace_dir,
            "state": self.state.value,
            "trajectory_id": self.trajectory_id,
            "metadata": {**self.metadata, "profile": self.lease.profile, "generation": self.lease.generation},
        }
