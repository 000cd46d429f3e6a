"""The status of a pool."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class PoolStatus:
    """The state of a pool at one moment.

    Attributes:
        name: the profile's name.
        state: ``new``, ``open`` or ``stopped``.
        isolation: how slots are isolated: ``uid``, ``container`` or ``directory``.
        reset: ``clean`` or ``replace``.
        containers: number of containers that have started and not ended.
        draining: number of those containers that get no more leases.
        starting: number of containers that are starting.
        max_containers: how many containers may be in use.
        slots_per_container: number of slots in each container.
        total_slots: slots of the containers that take leases.
        free: slots that can be leased now.
        leased: slots that are leased.
        cleaning: released slots that are being reset.
        quarantined: slots that could not be made clean, or whose container is being replaced.
        waiting: acquires that wait.
        lost: containers that ended by themselves since the start.
        error: why containers do not start now, or "".
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
        """Whether the pool has containers, but no leased slot and no waiting acquire."""
        return self.containers > 0 and not self.leased and not self.waiting
