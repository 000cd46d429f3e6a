"""What is learned from: groups of scored token sequences, made of trajectories.

Only what was scored is in a group. What failed for a reason of ours has no reward, and no place here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from hyperruntime.errors import RunError
from hyperruntime.rollout.run_files.record import SCORED, Segment, Trajectory

_EPSILON = 1e-6
ALL, LAST = "all", "last"


@attrs.frozen(kw_only=True)
class Sample:
    """One sequence of tokens, and what the trajectory it is part of was worth.

    Attributes:
        trajectory: id of the trajectory.
        part: number of the segment in it, from 0.
        parts: how many segments it has.
        segment: tokens, mask and log-probabilities.
        reward: of the trajectory.
        advantage: of the trajectory in its group.
        messages: the trajectory's conversation.
    """

    trajectory: str
    part: int
    parts: int
    segment: Segment
    reward: float
    advantage: float
    messages: Sequence[dict[str, Any]]

    @property
    def has_logprobs(self) -> bool:
        """Whether the server said how likely each token was that it emitted."""
        segment = self.segment
        return all(value is not None for value, mask in zip(segment.logprobs, segment.mask, strict=True) if mask)


@attrs.frozen(kw_only=True)
class ScoredGroup:
    """All that was scored of one item's trajectories.

    Attributes:
        item_id: the item.
        environment: name of the environment.
        model: name of the model.
        size: how many trajectories were wanted.
        scored: how many were scored.
        samples: at least one for each trajectory with tokens.
        temperature: at which the tokens were sampled.
    """

    item_id: str
    environment: str
    model: str
    size: int
    scored: int
    samples: Sequence[Sample]
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
    def all_equal(self) -> bool:
        """Whether nothing is to be learned from it: no reward differs from another."""
        return len(set(self.rewards)) <= 1


def group_advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """Return ``(reward - mean) / (standard deviation + 1e-6)`` over those that are not None, and None for the others.

    The deviation is that of the population, so that a group of one has advantage 0 and not none at all.

    Source: arXiv:2402.03300, section 4.1.2.
    """
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return [None] * len(rewards)
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / len(known))
    return [None if reward is None else (reward - mean) / (deviation + _EPSILON) for reward in rewards]


def scored_group(
    trajectories: Sequence[Trajectory], *, size: int | None = None, segments: str = ALL, temperature: float = 1.0
) -> ScoredGroup:
    """Return the group of one item's trajectories.

    Args:
        trajectories: all of one item, of any status.
        size: how many were wanted; as many as there are unless given.
        segments: ``all``, one sample for each segment with emitted tokens, or ``last``, one for each trajectory.
        temperature: at which the tokens were sampled.

    Raises:
        RunError: a record is damaged: lengths differ, or a log-probability is no finite number.
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
    """Refuse a record that would train on something else than was emitted."""
    if not len(segment.ids) == len(segment.mask) == len(segment.logprobs):
        raise RunError(f"the token record of trajectory {trajectory.id!r} is damaged: its lengths differ; run it again")
    for mask, logprob in zip(segment.mask, segment.logprobs, strict=True):
        if mask and logprob is not None and not math.isfinite(logprob):
            raise RunError(
                f"trajectory {trajectory.id!r} has a token of log-probability {logprob}: its server's numbers cannot be"
                " trained with; leave its run out"
            )
