"""The trainer ``grpo``: trains a policy in this process and serves it. ``start`` imports torch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.errors import ExtraMissingError, TrainerError
from hyperruntime.option_fields import AtLeast
from hyperruntime.rollout.loading import Kind, load_named
from hyperruntime.rollout.training_data.samples import ScoredGroup
from hyperruntime.trainers import Receipt
from hyperruntime.trainers.on_policy import PolicyTrainer

if TYPE_CHECKING:
    from hypertrainer_grpo.grpo import GrpoConfig
    from hypertrainer_grpo.learner import Learner
    from hypertrainer_grpo.server import PolicyServer

DEFAULT_POLICY = "hypertrainer_grpo.toypolicy:ToyPolicy"


@attrs.define(kw_only=True)
class Grpo:
    """Group relative policy optimisation of a policy in this process.

    Args:
        directory: directory of the checkpoints; training resumes from the last one.
        policy: ``module:Class`` of a policy, or a function that creates one.
        groups_per_update: number of groups that triggers an update; None means only ``update``
            does.
        learning_rate: learning rate of Adam.
        clip: see ``GrpoConfig``.
        kl_weight: weight of the KL divergence from the initial policy.
        epochs: passes over the groups of an update.
        save_every: updates between checkpoints.
        threads: number of torch threads; None does not change it.

    Attributes:
        name: name of the entry point.
        directory: directory of the checkpoints.

    Raises:
        SpecError: ``groups_per_update`` or ``save_every`` is less than 1.
    """

    name = "grpo"
    directory: Path = attrs.field(converter=Path)
    _policy: str | Callable[[], Any] = DEFAULT_POLICY
    groups_per_update: int | None = attrs.field(default=None, validator=AtLeast(1))
    _learning_rate: float = 1e-3
    _clip: float = 0.2
    _kl_weight: float = 0.0
    _epochs: int = 2
    save_every: int = attrs.field(default=1, validator=AtLeast(1))
    _threads: int | None = 1
    _waiting: list[ScoredGroup] = attrs.field(init=False, factory=list)
    _learner: Learner | None = attrs.field(init=False, default=None)
    _server: PolicyServer | None = attrs.field(init=False, default=None)

    @property
    def server(self) -> PolicyServer:
        """The server of the policy; it runs from ``start`` to ``close``."""
        if self._server is None:
            raise TrainerError("the policy is only served after start(); call start() first")
        return self._server

    @property
    def model_name(self) -> str:
        """Name of the policy on its server."""
        return self.learner.policy.name

    @property
    def base_url(self) -> str:
        """URL of the policy's server."""
        return self.server.url

    @property
    def learner(self) -> Learner:
        """The policy and its optimiser."""
        if self._learner is None:
            raise TrainerError("groups can only be submitted after start(); call start() first")
        return self._learner

    def check(self) -> None:
        """Check that torch is installed.

        Raises:
            ExtraMissingError: torch is not installed.
        """
        require_torch()

    async def start(self) -> int:
        """Load the policy and its last checkpoint, and serve it; return the number of updates made
        so far.
        """
        torch = require_torch()
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        from hypertrainer_grpo.grpo import GrpoConfig
        from hypertrainer_grpo.server import PolicyServer

        config = GrpoConfig(
            learning_rate=self._learning_rate,
            clip=self._clip,
            kl_weight=self._kl_weight,
            epochs=self._epochs,
        )
        self._learner = await asyncio.to_thread(self._load, config)
        self._server = PolicyServer(self._learner.policy)
        self._server.version = self._learner.step
        self._server.start()
        return self._learner.step

    async def submit(self, group: ScoredGroup) -> Receipt:
        """Store a group, and update the policy if ``groups_per_update`` groups are stored."""
        reason = self._unusable(group)
        if reason:
            return Receipt(accepted=False, step=self.learner.step, detail=reason)
        self._waiting.append(group)
        if self.groups_per_update is None or len(self._waiting) < self.groups_per_update:
            return Receipt(accepted=True, step=self.learner.step)
        metrics = await self.update()
        return Receipt(accepted=True, step=self.learner.step, metrics=metrics)

    async def update(self) -> dict[str, float]:
        """Update the policy with all groups submitted since the last update; return metrics, empty
        without groups.
        """
        if not self._waiting:
            return {}
        groups, self._waiting = self._waiting, []
        return await asyncio.to_thread(self._update, groups)

    async def close(self) -> None:
        """Stop the server; groups that wait for an update are dropped."""
        if self._server is not None:
            server, self._server = self._server, None
            await asyncio.to_thread(server.stop)

    def _load(self, config: GrpoConfig) -> Learner:
        from hypertrainer_grpo.learner import Learner

        kind = Kind(word="policy", members=("render", "text"))
        policy = self._policy() if callable(self._policy) else load_named(kind, self._policy)
        learner = Learner(policy, config, self.directory, save_every=self.save_every)
        if not learner.resume():
            learner.save()  # a resume before the first update must find the same weights
        return learner

    def _update(self, groups: list[ScoredGroup]) -> dict[str, float]:
        with self.server.lock:
            metrics = self.learner.update(groups)
            self.server.version = self.learner.step
        return metrics

    def _unusable(self, group: ScoredGroup) -> str:
        context = self.learner.policy.context
        if not group.samples:
            return "no trajectory has a token record"
        if not all(sample.has_logprobs for sample in group.samples):
            return "the model's server did not return log probabilities"
        if group.longest > context:
            return f"a sequence of {group.longest} tokens exceeds the policy's context of {context}"
        return ""


def require_torch() -> Any:  # noqa: ANN401 - the module
    """Import and return torch.

    Raises:
        ExtraMissingError: torch is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ExtraMissingError("trainers", "torch", "train") from error
    return torch


_: type[PolicyTrainer] = Grpo
