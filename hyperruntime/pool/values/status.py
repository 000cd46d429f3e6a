"""What a pool says of itself."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class PoolStatus:
    """A pool at one moment.

    Attributes:
        name: of its profile.
        state: ``new``, ``open`` or ``stopped``.
        isolation: what keeps slots apart: ``uid``, ``container`` or ``directory``.
        reset: ``clean`` or ``replace``.
        containers: that are there.
        draining: those of them that get no more leases.
        starting: that are not there yet.
        max_containers: how many may be in use.
        slots_per_container: as decided on this engine.
        total_slots: of the containers that take leases.
        free: slots that can be leased at once.
        leased: slots that somebody holds.
        cleaning: slots on their way back.
        quarantined: slots that could not be made clean.
        waiting: acquires that wait.
        lost: containers that ended by themselves since the start.
        error: why containers do not start at present, or "".
    """

    name: str
    state: str
    isolation: str = ""
    reset: str = ""
    containers: int = 0
    draining: int = 0
    starting: int = 0
    max_containers: int = 0
    slots_per_container: int = 0
    total_slots: int = 0
    free: int = 0
    leased: int = 0
    cleaning: int = 0
    quarantined: int = 0
    waiting: int = 0
    lost: int = 0
    error: str = ""

    @property
    def is_unused(self) -> bool:
        """Whether it holds containers, and nobody holds or waits for a slot."""
        return self.containers > 0 and not self.leased and not self.waiting
