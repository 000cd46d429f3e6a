"""Build the group of an item's trajectories."""

from __future__ import annotations

from collections.abc import Sequence

from hyperruntime.rollout.run_files.record import SCORED, Group, Trajectory
from hyperruntime.rollout.training_data.samples import group_advantages


def make_group(item_id: str, size: int, trajectories: Sequence[Trajectory]) -> Group:
    """Return the group of an item's trajectories, in the order of their index.

    Args:
        item_id: id of the item.
        size: number of trajectories that the run wants.
        trajectories: the recorded trajectories of the item, of any status.
    """
    ordered = sorted(trajectories, key=lambda trajectory: trajectory.index)
    rewards = [trajectory.reward if trajectory.status == SCORED else None for trajectory in ordered]
    return Group(
        item_id=item_id,
        size=size,
        trajectories=[trajectory.id for trajectory in ordered],
        rewards=rewards,
        advantages=group_advantages(rewards),
        complete=len(ordered) == size and None not in rewards,
    )
