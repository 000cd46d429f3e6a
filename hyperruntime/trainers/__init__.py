"""The trainer seam: where scored groups go to be learned from.

A trainer is a class with these members, made with the keyword arguments that the user wrote; entry point group
``hyperruntime.trainers``, or ``module:Class``.

May import ``report`` and what stands before it in ``tests/unit/test_folders.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from hyperruntime.rollout.training_data.samples import ScoredGroup

__all__ = ["Receipt", "Trainer"]


@attrs.frozen(kw_only=True)
class Receipt:
    """What became of a group.

    Attributes:
        accepted: whether it will be learned from.
        step: how many updates of the policy the trainer had made when it answered.
        detail: one sentence for people, "" where there is nothing to say.
        metrics: of the update that this group completed, by name; empty where it completed none.
    """

    accepted: bool
    step: int = 0
    detail: str = ""
    metrics: Mapping[str, float] = attrs.field(factory=dict)


class Trainer(Protocol):
    """Learns from groups, here or elsewhere.

    Attributes:
        name: of the entry point.
    """

    name: str

    async def start(self) -> int:
        """Make ready to take groups; return the step at which the trainer is.

        Raises:
            TrainerError: it cannot be reached, or will not have us.
        """
        ...

    async def submit(self, group: ScoredGroup) -> Receipt:
        """Hand over a group. A group that cannot be learned from is declined in the receipt.

        Raises:
            TrainerError: the trainer is gone, or refuses what it should take. The group may be submitted again.
        """
        ...

    async def close(self) -> None:
        """Let go of the trainer; what was submitted stays submitted. May be called twice."""
        ...
