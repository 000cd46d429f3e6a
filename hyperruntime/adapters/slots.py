"""A view of a leased slot for programs that read a slot's state from it."""

from __future__ import annotations

import enum
from typing import Any

import attrs

from hyperruntime.pool.values.slot import Slot


class SlotState(enum.Enum):
    """The state of a slot, as a tool backend reports it."""

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    EXECUTING = "executing"
    RELEASING = "releasing"
    ERROR = "error"


@attrs.define(eq=False, kw_only=True)
class BackendSlot:
    """A leased slot of a tool backend, with its state.

    The pool checks ``lease`` only, so changing this object cannot make a stale slot valid again.

    Attributes:
        lease: the pool's slot handle.
        running: number of the slot's requests that are running.
        ended: ``ACQUIRED`` while the slot is leased, then ``RELEASING``, ``AVAILABLE`` or ``ERROR``.
        metadata: the holder's own JSON values.
    """

    lease: Slot
    running: int = 0
    ended: SlotState = SlotState.ACQUIRED
    metadata: dict[str, Any] = attrs.field(factory=dict)

    @property
    def slot_id(self) -> str:
        """The slot's name, unique on this machine."""
        return self.lease.slot_id

    @property
    def alloc_id(self) -> str:
        """Name of the slot's container."""
        return self.lease.container

    @property
    def container_addr(self) -> str:
        """Name of the slot's container, in place of an address: the container has none."""
        return self.lease.container

    @property
    def workspace_dir(self) -> str:
        """Absolute path of the slot's directory in the container."""
        return self.lease.workspace

    @property
    def trajectory_id(self) -> str | None:
        """The trajectory that acquired the slot; None after its release."""
        return None if self.ended is SlotState.AVAILABLE else self.lease.task_id

    @property
    def state(self) -> SlotState:
        """The slot's state now."""
        if self.ended is SlotState.ACQUIRED and self.running:
            return SlotState.EXECUTING
        return self.ended

    @property
    def is_available(self) -> bool:
        """Whether the slot was released."""
        return self.state is SlotState.AVAILABLE

    @property
    def is_acquired(self) -> bool:
        """Whether the slot is leased and not being released."""
        return self.ended is SlotState.ACQUIRED

    def to_dict(self) -> dict[str, Any]:
        """Return the slot as JSON values."""
        return {
            "slot_id": self.slot_id,
            "alloc_id": self.alloc_id,
            "container_addr": self.container_addr,
            "workspace_dir": self.workspace_dir,
            "state": self.state.value,
            "trajectory_id": self.trajectory_id,
            "metadata": {**self.metadata, "profile": self.lease.profile, "generation": self.lease.generation},
        }
