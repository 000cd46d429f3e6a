"""The summary of a rollout run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import attrs

from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Trajectory

T = TypeVar("T", int, float)
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
        own_share: share of the trajectories' time in this call that was not spent in the model,
            tools, setup or verification; the wait for verification containers is included.
        cpu_s: processor seconds of this process in this call.
        left_out: why items of the data set were left out, by name.
        interrupted: whether a drain ended it before all trajectories were made; it can be resumed.
    """

    run_dir: str
    wanted: int
    scored: int
    infrastructure: int
    resumed: int
    mean_reward: float | None
    groups: int
    stop_reasons: dict[str, int] = attrs.field(hash=False)
    errors: dict[str, int] = attrs.field(hash=False)
    last_errors: dict[str, str] = attrs.field(hash=False)
    usage: dict[str, int] = attrs.field(hash=False)
    duration_s: float
    per_minute: float
    phases: dict[str, float] = attrs.field(hash=False)
    own_share: float
    cpu_s: float
    left_out: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON value."""
        return attrs.asdict(self)


class Tally:
    """The trajectories of a run, without their large fields.

    Attributes:
        before: those that were recorded before this call.
        now: those of this call.
    """

    def __init__(self) -> None:
        """Start the clock with no trajectories."""
        self._began = time.monotonic()
        self._cpu = time.process_time()
        self.before: list[Trajectory] = []
        self.now: list[Trajectory] = []

    @property
    def mean_reward(self) -> float | None:
        """The mean of all rewards so far, or None."""
        rewards = self._rewards()
        return sum(rewards) / len(rewards) if rewards else None

    def summary(self, run_dir: str, wanted: int, groups: int) -> RolloutSummary:
        """Return the current summary.

        Args:
            run_dir: directory of the run, or "".
            wanted: trajectories of the whole run.
            groups: number of complete groups.
        """
        duration = time.monotonic() - self._began
        known = [*self.before, *self.now]
        errors = [each.error or {} for each in known if each.status == INFRASTRUCTURE]
        phases = _sums(each.timing for each in self.now)
        total = phases.get("total_s", 0.0)
        theirs = sum(phases.get(name, 0.0) for name in _THEIRS) - phases.get("fresh_s", 0.0)
        return RolloutSummary(
            run_dir=run_dir,
            wanted=wanted,
            scored=len(self._rewards()),
            infrastructure=len(errors),
            resumed=len(self.before),
            mean_reward=self.mean_reward,
            groups=groups,
            stop_reasons=dict(
                Counter(each.stop_reason for each in known if each.status != INFRASTRUCTURE)
            ),
            errors=dict(Counter(error.get("kind", "") for error in errors)),
            last_errors={error.get("kind", ""): error.get("message", "") for error in errors},
            usage=_sums(each.usage for each in self.now),
            duration_s=duration,
            per_minute=60 * len(self.now) / duration if duration > 0 else 0.0,
            phases={name: round(value, 3) for name, value in phases.items()},
            own_share=(total - theirs) / total if total > 0 else 0.0,
            cpu_s=time.process_time() - self._cpu,
        )

    def _rewards(self) -> list[float]:
        return [each.reward for each in (*self.before, *self.now) if each.reward is not None]


def _sums(amounts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Return the sum of each name's amounts."""
    sums: Counter[str] = Counter()
    for each in amounts:
        sums.update(each)  # adds floats too
    return dict(sums)
