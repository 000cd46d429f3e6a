"""The summary of a rollout run."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import attrs

from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Trajectory

_THEIRS = ("model_s", "tools_s", "setup_s", "verify_s")


@attrs.frozen(kw_only=True)
class RolloutSummary:
    """The summary of a run; "this call" means the part after the last start or resume.

    Attributes:
        run_dir: directory of the run; "" if no files are written.
        wanted: trajectories of the whole run.
        scored: trajectories with a reward.
        infrastructure: trajectories that ended with an infrastructure failure.
        resumed: trajectories that were recorded before this call.
        mean_reward: mean reward of the scored trajectories, or None.
        groups: number of complete groups.
        stop_reasons: number of trajectories without an infrastructure failure, by stop reason.
        errors: number of infrastructure failures by kind.
        last_errors: the last message by kind.
        usage: tokens of this call.
        duration_s: seconds of this call.
        per_minute: trajectories per minute in this call.
        phases: seconds by phase in this call, summed over trajectories.
        own_share: share of the trajectories' time in this call that was not spent in the model, tools, setup or
            verification; the wait for verification containers is included.
        cpu_s: processor seconds of this process in this call.
    """

    run_dir: str
    wanted: int
    scored: int
    infrastructure: int
    resumed: int
    mean_reward: float | None
    groups: int
    stop_reasons: dict[str, int]
    errors: dict[str, int]
    last_errors: dict[str, str]
    usage: dict[str, int]
    duration_s: float
    per_minute: float
    phases: dict[str, float]
    own_share: float
    cpu_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON value."""
        return attrs.asdict(self)


class Tally:
    """Counts trajectories."""

    def __init__(self) -> None:
        """Start the clock with no trajectories."""
        self._began, self._cpu = time.monotonic(), time.process_time()
        self._rewards: dict[str, float | None] = {}
        self._errors: dict[str, str] = {}
        self._messages: dict[str, str] = {}
        self._reasons: Counter[str] = Counter()
        self._usage: Counter[str] = Counter()
        self._phases: Counter[str] = Counter()
        self._resumed = self._run = 0

    def seen(self, trajectory: Trajectory) -> None:
        """Count a trajectory that was recorded before this call."""
        self._resumed += 1
        self._count(trajectory)

    def done(self, trajectory: Trajectory) -> None:
        """Count a trajectory of this call."""
        self._run += 1
        self._count(trajectory)
        self._usage.update(trajectory.usage)
        for name, seconds in trajectory.timing.items():
            self._phases[name] += seconds  # type: ignore[assignment]

    @property
    def mean_reward(self) -> float | None:
        """The mean of all rewards so far, or None."""
        rewards = [reward for reward in self._rewards.values() if reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    def summary(self, run_dir: str, wanted: int, groups: int) -> RolloutSummary:
        """Return the current summary.

        Args:
            run_dir: directory of the run, or "".
            wanted: trajectories of the whole run.
            groups: number of complete groups.
        """
        duration = time.monotonic() - self._began
        total = self._phases.get("total_s", 0.0)
        theirs = sum(self._phases.get(name, 0.0) for name in _THEIRS) - self._phases.get("fresh_s", 0.0)
        return RolloutSummary(
            run_dir=run_dir,
            wanted=wanted,
            scored=sum(reward is not None for reward in self._rewards.values()),
            infrastructure=len(self._errors),
            resumed=self._resumed,
            mean_reward=self.mean_reward,
            groups=groups,
            stop_reasons=dict(self._reasons),
            errors=dict(Counter(self._errors.values())),
            last_errors=dict(self._messages),
            usage=dict(self._usage),
            duration_s=duration,
            per_minute=60 * self._run / duration if duration > 0 else 0.0,
            phases={name: round(float(value), 3) for name, value in self._phases.items()},
            own_share=(total - theirs) / total if total > 0 else 0.0,
            cpu_s=time.process_time() - self._cpu,
        )

    def _count(self, trajectory: Trajectory) -> None:
        self._rewards[trajectory.id] = trajectory.reward
        if trajectory.status == INFRASTRUCTURE:
            error = trajectory.error or {}
            self._errors[trajectory.id] = kind = error.get("kind", "")
            self._messages[kind] = error.get("message", "")
        else:
            self._reasons[trajectory.stop_reason] += 1
