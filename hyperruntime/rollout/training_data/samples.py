"""Training samples: groups of scored token sequences, built from trajectories.

Infrastructure failures have no reward and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from hyperruntime.errors import RunError
from hyperruntime.rollout.run_files.record import SCORED, Group, Segment, Trajectory

_EPSILON = 1e-6
ALL = "all"
LAST = "last"


@attrs.frozen(kw_only=True)
class Sample:
    """One sequence of tokens, with the reward of its trajectory.

    Attributes:
        trajectory: id of the trajectory.
        part: index of the segment in the trajectory, from 0.
        parts: number of segments of the trajectory.
        segment: tokens, mask and log probabilities.
        reward: reward of the trajectory.
        advantage: advantage of the trajectory in its group.
        messages: conversation of the trajectory.
    """

    trajectory: str
    part: int
    parts: int
    segment: Segment
    reward: float
    advantage: float
    messages: Sequence[dict[str, Any]] = attrs.field(hash=False)

    @property
    def has_logprobs(self) -> bool:
        """Whether every emitted token has a log probability."""
        segment = self.segment
        return all(
            value is not None
            for value, mask in zip(segment.logprobs, segment.mask, strict=True)
            if mask
        )


@attrs.frozen(kw_only=True)
class ScoredGroup:
    """The scored trajectories of one item.

    Attributes:
        item_id: id of the item.
        environment: name of the environment.
        model: name of the model.
        size: number of trajectories that the run wants.
        scored: number of scored trajectories.
        samples: at least one for each scored trajectory with emitted tokens.
        temperature: sampling temperature of the tokens.
    """

    item_id: str
    environment: str
    model: str
    size: int
    scored: int
    samples: Sequence[Sample] = attrs.field(hash=False)
    temperature: float = 1.0

    @property
    def complete(self) -> bool:
        """Whether every wanted trajectory was scored."""
        return self.scored == self.size

    @property
    def rewards(self) -> list[float]:
        """The reward of each trajectory that has samples, in order."""
        return list({sample.trajectory: sample.reward for sample in self.samples}.values())

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence, or 0."""
        return max((len(sample.segment.ids) for sample in self.samples), default=0)


def group_advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """Return ``(reward - mean) / (standard deviation + 1e-6)`` over the rewards that are not None,
    and None for None.

    The population standard deviation is used, so the advantage of a group of one is 0.

    Source: arXiv:2402.03300, section 4.1.2.
    """
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return [None] * len(rewards)
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / len(known))
    return [
        None if reward is None else (reward - mean) / (deviation + _EPSILON) for reward in rewards
    ]


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


def scored_group(
    trajectories: Sequence[Trajectory],
    *,
    size: int | None = None,
    segments: str = ALL,
    temperature: float = 1.0,
) -> ScoredGroup:
    """Return the group of one item's trajectories.

    Args:
        trajectories: all trajectories of one item, of any status.
        size: number of trajectories that the run wants; None means the number of ``trajectories``.
        segments: ``all``: one sample for each segment with emitted tokens; ``last``: only the last
            of a trajectory.
        temperature: sampling temperature of the tokens.

    Raises:
        RunError: a token record is damaged: its lengths differ, or a log probability is not finite.
    """
    ordered = sorted(trajectories, key=lambda each: each.index)
    first = ordered[0]
    scored = [each for each in ordered if each.status == SCORED and each.reward is not None]
    advantages = group_advantages([each.reward for each in scored])
    samples = [
        sample
        for each, advantage in zip(scored, advantages, strict=True)
        for sample in _samples(each, advantage or 0.0, segments)
    ]
    return ScoredGroup(
        item_id=first.item_id,
        environment=first.environment,
        model=first.model,
        size=len(ordered) if size is None else size,
        scored=len(scored),
        samples=tuple(samples),
        temperature=temperature,
    )


def _samples(trajectory: Trajectory, advantage: float, segments: str) -> list[Sample]:
    kept = [segment for segment in trajectory.segments if any(segment.mask)]
    chosen = list(enumerate(kept))[-1:] if segments == LAST else list(enumerate(kept))
    for _, segment in chosen:
        _check(trajectory, segment)
    return [
        Sample(
            trajectory=trajectory.id,
            part=number,
            parts=len(kept),
            segment=segment,
            reward=float(trajectory.reward or 0.0),
            advantage=advantage,
            messages=tuple(dict(message) for message in trajectory.messages),
        )
        for number, segment in chosen
    ]


def _check(trajectory: Trajectory, segment: Segment) -> None:
    """Raise ``RunError`` if a token record is damaged."""
    if not len(segment.ids) == len(segment.mask) == len(segment.logprobs):
        raise RunError(
            f"the token record of trajectory {trajectory.id!r} is damaged: its lengths differ; "
            "run it again"
        )
    for mask, logprob in zip(segment.mask, segment.logprobs, strict=True):
        if mask and logprob is not None and not math.isfinite(logprob):
            raise RunError(
                f"trajectory {trajectory.id!r} has a token with log probability {logprob}, "
                "which is not finite; do not train on this run"
            )
