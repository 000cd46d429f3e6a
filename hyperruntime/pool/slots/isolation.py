"""Making places in a container and making them new again: the seam, and the keeper of slots that share nothing.

All of it blocks, and is called in the pool's threads.
"""

from __future__ import annotations

from typing import Protocol

from hyperruntime.container import Container
from hyperruntime.errors import PoolError
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.values.config import PoolConfig

_TIMEOUT_S = 120.0
# The first of the candidates that is a directory one can write to, or that can be made.
_MAKE_WORKSPACE = """
for place; do
    if mkdir -p -- "$place" 2>/dev/null && [ -w "$place" ]; then printf %s "$place"; exit 0; fi
done
echo "none of these can be made and written to: $*" >&2
exit 1
"""
_WORKSPACES = ("/workspace", "/tmp/workspace")  # noqa: S108 - inside


class SlotIsolation(Protocol):
    """Knows how the slots of a container are kept apart."""

    def prepare(self, container: Container) -> list[SlotExec]:
        """Make the places of a container that has just started.

        Raises:
            HyperRuntimeError: they cannot be made; the container is of no use.
        """
        ...

    def renew(self, place: SlotExec) -> SlotExec:
        """End what runs in a place, remove what it left, look that nothing is left, and return it as new.

        Raises:
            HyperRuntimeError: it cannot be made new, or something is left.
        """
        ...

    def end(self, place: SlotExec) -> bool:
        """End every process of a place; tell whether none is left."""
        ...

    def forget(self, place: SlotExec) -> None:
        """Give up what is kept for a place whose container is gone."""
        ...


class ContainerIsolation:
    """One slot with a container of its own, as the spec's own user; it is never made new but replaced."""

    def __init__(self, config: PoolConfig) -> None:
        """Take what it needs to know."""
        self._workdir = config.spec.workdir

    def prepare(self, container: Container) -> list[SlotExec]:
        """Make its workspace: the spec's own working directory where it names one."""
        candidates = (self._workdir,) if self._workdir is not None else _WORKSPACES
        command = ["/bin/sh", "-c", _MAKE_WORKSPACE, "workspace", *candidates]
        result = container.exec(command, workdir="/", timeout_s=_TIMEOUT_S)
        if result.exit_code != 0:
            why = result.stderr.decode(errors="replace").strip()
            raise PoolError(f"a slot has no workspace in {container.name}: {why}; name one as the spec's workdir")
        workspace = result.stdout.decode()
        slot_id = f"{container.name}-0"
        return [SlotExec(container, slot_id=slot_id, workspace=workspace, isolation="container", group=slot_id)]

    def renew(self, place: SlotExec) -> SlotExec:
        """Refuse: its user may have changed anything."""
        raise PoolError(f"slot {place.slot_id} is not cleaned; its container is replaced")

    def end(self, place: SlotExec) -> bool:
        """End what its commands started."""
        return place.container.end_group(place.slot_id)

    def forget(self, place: SlotExec) -> None:
        """Do nothing."""
