"""Groups of trajectories of one item. Imports record.

Source of the advantages: GRPO, arXiv:2402.03300, section 4.1.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hyperruntime.rollout.record import SCORED, Group, Trajectory

_EPSILON = 1e-6


def make_group(item_id: str, size: int, trajectories: Sequence[Trajectory]) -> Group:
    """Return the group of an item's trajectories, in the order of their index."""
    ordered = sorted(trajectories, key=lambda trajectory: trajectory.index)
    rewards = [trajectory.reward if trajectory.status == SCORED else None for trajectory in ordered]
    return Group(
        item_id=item_id,
        size=size,
        trajectories=[trajectory.id for trajectory in ordered],
        rewards=rewards,
        advantages=advantages(rewards),
        complete=len(ordered) == size and None not in rewards,
    )


def advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """Return how many standard deviations each reward is above the group's mean; None for one that is none."""
    scored = [reward for reward in rewards if reward is not None]
    if not scored:
        return [None] * len(rewards)
    mean, deviation = statistics.fmean(scored), statistics.pstdev(scored)
    return [None if reward is None else (reward - mean) / (deviation + _EPSILON) for reward in rewards]
