"""On-policy training: repeat rollouts with the current policy and an update from their groups.

The directory keeps the rollouts of each update, one line of metrics per update, and the
checkpoints. Training can be killed at any time and resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import attrs

from hyperruntime.errors import SpecError, TrainerError
from hyperruntime.option_fields import AtLeast
from hyperruntime.rollout.environment import EnvironmentBase
from hyperruntime.rollout.models import ModelOptions, open_model
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts, run_rollouts
from hyperruntime.rollout.run.slot_pools import PooledSlots
from hyperruntime.rollout.training_data.export import KEEP, ExportOptions, export_groups
from hyperruntime.runs.journal import rewrite_lines
from hyperruntime.runs.lock import RunLock
from hyperruntime.storage.atomic import append_line, make_directory
from hyperruntime.trainers import Trainer

if TYPE_CHECKING:
    from hyperruntime.runtime import Runtime

METRICS = "metrics.jsonl"


class PolicyTrainer(Trainer, Protocol):
    """A trainer that holds the policy and serves it between updates.

    Attributes:
        model_name: name of the policy on its server.
        base_url: URL of its server, which offers OpenAI's chat completions from ``start`` to
            ``close``.
    """

    @property
    def model_name(self) -> str:
        """Name of the policy."""
        ...

    @property
    def base_url(self) -> str:
        """URL of its server."""
        ...

    def check(self) -> None:
        """Check that this trainer can start here.

        Raises:
            ExtraMissingError: a required library is not installed.
        """
        ...

    async def update(self) -> dict[str, float]:
        """Update the policy with the groups submitted since the last update; return metrics."""
        ...


@attrs.frozen(kw_only=True)
class TrainOptions:
    """Training options.

    Attributes:
        rollouts: rollout options of each update; ``seed`` is the seed of the training.
        updates: total number of updates, those before a resume included.
        items_per_update: items of each update, taken in turn from all items; None means all.
    """

    rollouts: RolloutOptions
    updates: int = attrs.field(default=30, validator=AtLeast(1))
    items_per_update: int | None = attrs.field(default=None, validator=AtLeast(1))

    def __attrs_post_init__(self) -> None:
        """Check that a group can have a training signal."""
        if self.rollouts.group_size < 2:
            raise SpecError(
                "group_size",
                self.rollouts.group_size,
                "2 or more; a group of one has no training signal",
            )


@attrs.frozen(kw_only=True)
class Update:
    """One update of the policy.

    Attributes:
        step: number of the update, from 1.
        groups: number of groups that the trainer accepted.
        declined: number of groups that the trainer declined.
        not_scored: number of trajectories that ended with an infrastructure failure.
        metrics: metrics by name: ``reward``, ``ratio_error``, ``loss``, ...
    """

    step: int
    groups: int
    declined: int
    not_scored: int
    metrics: dict[str, float] = attrs.field(hash=False)


async def train(
    runtime: Runtime,
    trainer: PolicyTrainer,
    environment: EnvironmentBase,
    options: TrainOptions,
    directory: Path,
    *,
    on_update: Callable[[Update], None] = lambda _: None,
) -> list[Update]:
    """Train until all updates are made; return the updates of this call.

    Args:
        runtime: where containers run.
        trainer: a trainer that is not started; it is closed at the end.
        environment: the environment.
        options: training options.
        directory: for rollouts and metrics; an existing training is resumed.
        on_update: called after every update.

    Raises:
        TrainerError: the trainer accepted no group of an update, or it failed.
        RunLockedError: another live process owns the directory.
    """
    make_directory(directory)
    made = []
    async with AsyncExitStack() as stack:
        stack.enter_context(RunLock(directory))
        stack.push_async_callback(trainer.close)
        first = await trainer.start()
        _forget_after(directory / METRICS, first)
        rollouts = options.rollouts.settled()
        slots = await stack.enter_async_context(PooledSlots(runtime, rollouts, environment))
        model = open_model(ModelOptions(name=trainer.model_name, base_url=trainer.base_url))
        stack.push_async_callback(model.close)
        items = [item.id for item in environment.items()]
        for step in range(first + 1, options.updates + 1):
            chosen = _items_of(items, options.items_per_update, step)
            run_dir = directory / "rollouts" / f"step-{step:06d}"
            parts = Parts(environment=environment, model=model, slots=slots)
            asked = attrs.evolve(rollouts, seed=step_seed(rollouts.seed or 0, step), items=chosen)
            summary = await run_rollouts(runtime, asked, run_dir=run_dir, parts=parts)
            update = await _learn(trainer, run_dir, step, summary.wanted - summary.scored)
            append_line(directory / METRICS, attrs.asdict(update))
            on_update(update)
            made.append(update)
    return made


def step_seed(seed: int, step: int) -> int:
    """Return the seed of an update's rollouts."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}".encode()).digest()[:4], "big") >> 1


async def _learn(trainer: PolicyTrainer, run_dir: Path, step: int, not_scored: int) -> Update:
    """Submit the groups of an update's rollouts to the trainer, and update the policy.

    Groups are sorted by item, because floating-point sums depend on the order.
    """
    groups = sorted(
        export_groups(run_dir, ExportOptions(incomplete=KEEP)), key=lambda group: group.item_id
    )
    receipts = [await trainer.submit(group) for group in groups]
    accepted = sum(receipt.accepted for receipt in receipts)
    if not accepted:
        why = next((receipt.detail for receipt in receipts), "no trajectory was scored")
        raise TrainerError(f"update {step} has nothing to learn from: {why}; see {run_dir}")
    metrics = await trainer.update()
    return Update(
        step=step,
        groups=accepted,
        declined=len(receipts) - accepted,
        not_scored=not_scored,
        metrics=metrics,
    )


def _items_of(items: Sequence[str], count: int | None, step: int) -> tuple[str, ...]:
    if count is None or count >= len(items):
        return tuple(items)
    begin = (step - 1) * count
    return tuple(items[(begin + n) % len(items)] for n in range(count))


def _forget_after(path: Path, step: int) -> None:
    """Remove the metrics of updates after ``step``, which no checkpoint has; these updates run
    again.
    """
    if path.exists():
        rewrite_lines(path, lambda value: value["step"] <= step)
