"""The trainer interface: a trainer takes scored groups and learns from them.

A trainer is any class with the members of ``Trainer``; the user's options are its keyword
arguments. Users name it by an entry point of the group ``hyperruntime.trainers``, or by
``module:Class``. Its optional attribute ``interface_version`` is the version of this interface that
it was written for (docs/versions.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from hyperruntime.rollout.training_data.samples import ScoredGroup

__all__ = ["Receipt", "Trainer"]


@attrs.frozen(kw_only=True)
class Receipt:
    """The trainer's answer to a submitted group.

    Attributes:
        accepted: whether the trainer will learn from the group.
        step: number of policy updates that the trainer has made.
        detail: one sentence for people, or "".
        metrics: metrics by name if this group completed an update, else empty.
    """

    accepted: bool
    step: int = 0
    detail: str = ""
    metrics: Mapping[str, float] = attrs.field(factory=dict, hash=False)


class Trainer(Protocol):
    """Learns from groups, in this process or elsewhere.

    Attributes:
        name: name of the entry point.
    """

    name: str

    async def start(self) -> int:
        """Get ready to take groups; return the trainer's current step.

        Raises:
            TrainerError: the trainer cannot be reached, or rejects the registration.
        """
        ...

    async def submit(self, group: ScoredGroup) -> Receipt:
        """Submit a group; the receipt declines a group that the trainer cannot use.

        Raises:
            TrainerError: the trainer cannot be reached, or reports an error; the caller may submit
                the group again.
        """
        ...

    async def close(self) -> None:
        """Disconnect from the trainer; submitted groups stay submitted. Idempotent."""
        ...
