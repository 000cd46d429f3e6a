"""The interface that prepares and resets the slots of a container, and isolation by one container for each slot.

All methods block; the pool calls them in its threads.
"""

from __future__ import annotations

from typing import Protocol

from hyperruntime.container import Container
from hyperruntime.errors import PoolError
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.values.config import PoolConfig

_TIMEOUT_S = 120.0
# Prints the first candidate that is a writable directory, or that can be created.
_MAKE_WORKSPACE = """
for place; do
    if mkdir -p -- "$place" 2>/dev/null && [ -w "$place" ]; then printf %s "$place"; exit 0; fi
done
echo "none of these is or becomes a writable directory: $*" >&2
exit 1
"""
_WORKSPACES = ("/workspace", "/tmp/workspace")  # noqa: S108 - inside


class SlotIsolation(Protocol):
    """Isolates the slots of a container from each other."""

    def prepare(self, container: Container) -> list[SlotExec]:
        """Create the slots of a container that has just started.

        Raises:
            HyperRuntimeError: the slots cannot be created; the container is unusable.
        """
        ...

    def renew(self, slot_exec: SlotExec) -> SlotExec:
        """End the processes of a slot, remove its files, check that nothing is left, and return the clean slot.

        Raises:
            HyperRuntimeError: the slot cannot be cleaned, or something is left.
        """
        ...

    def forget(self, slot_exec: SlotExec) -> None:
        """Free what is reserved for a slot whose container is gone."""
        return


class ContainerIsolation(SlotIsolation):
    """One slot per container, running as the spec's user; the container is replaced instead of cleaned."""

    def __init__(self, config: PoolConfig) -> None:
        """Take the working directory from the spec."""
        self._workdir = config.spec.workdir

    def prepare(self, container: Container) -> list[SlotExec]:
        """Create the workspace: the spec's working directory, else a default directory."""
        candidates = (self._workdir,) if self._workdir is not None else _WORKSPACES
        command = ["/bin/sh", "-c", _MAKE_WORKSPACE, "workspace", *candidates]
        result = container.exec(command, workdir="/", timeout_s=_TIMEOUT_S)
        if result.exit_code != 0:
            why = result.stderr.decode(errors="replace").strip()
            raise PoolError(f"no workspace for the slot in {container.name}: {why}; set the spec's workdir")
        workspace = result.stdout.decode()
        return [SlotExec(container, slot_id=f"{container.name}-0", workspace=workspace)]

    def renew(self, slot_exec: SlotExec) -> SlotExec:
        """Refuse: the slot's user may be root and may have changed anything."""
        raise PoolError(f"slot {slot_exec.slot_id} cannot be cleaned; its container is replaced instead")
