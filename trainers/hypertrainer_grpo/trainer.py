"""The trainer seam's `grpo`: learns here, and serves the policy that it learns. torch is imported when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hyperruntime.errors import ExtraMissingError, SpecError, TrainerError
from hyperruntime.rollout.loading import Kind, load_named
from hyperruntime.rollout.training_data.samples import ScoredGroup
from hyperruntime.trainers import Receipt
from hyperruntime.trainers.on_policy import PolicyTrainer

if TYPE_CHECKING:
    from hypertrainer_grpo.grpo import GrpoConfig
    from hypertrainer_grpo.learner import Learner
    from hypertrainer_grpo.policy import Policy
    from hypertrainer_grpo.server import PolicyServer

DEFAULT_POLICY = "hypertrainer_grpo.toypolicy:ToyPolicy"


class Grpo:
    """Group relative policy optimisation of a policy in this process.

    Attributes:
        name: of the entry point.
        directory: of its checkpoints.
    """

    name = "grpo"

    def __init__(
        self,
        *,
        directory: str,
        policy: str | Callable[[], Any] = DEFAULT_POLICY,
        groups_per_update: int | None = None,
        learning_rate: float = 1e-3,
        clip: float = 0.2,
        kl_weight: float = 0.0,
        epochs: int = 2,
        save_every: int = 1,
        threads: int | None = 1,
    ) -> None:
        """Note what to train; nothing is loaded before ``start``.

        Args:
            directory: of the checkpoints; training goes on from the last one there.
            policy: ``module:Class`` of a policy, or what makes one.
            groups_per_update: after how many groups the policy is changed; None: when ``update`` is called.
            learning_rate: of Adam.
            clip: see ``GrpoConfig``, as the two that follow.
            kl_weight: weight of the distance from the policy at the beginning.
            epochs: passes over the groups of an update.
            save_every: updates between checkpoints.
            threads: of torch; None leaves them as they are.
        """
        for name, value in (("groups_per_update", groups_per_update), ("save_every", save_every)):
            if value is not None and value < 1:
                raise SpecError(name, value, "1 or more")
        self.directory = Path(directory)
        self._policy_name, self._groups_per_update, self._save_every = policy, groups_per_update, save_every
        self._settings: Mapping[str, Any] = {
            "learning_rate": learning_rate,
            "clip": clip,
            "kl_weight": kl_weight,
            "epochs": epochs,
        }
        self._threads = threads
        self._waiting: list[ScoredGroup] = []
        self._learner: Learner | None = None
        self._server: PolicyServer | None = None

    @property
    def server(self) -> PolicyServer:
        """The server of the policy; it answers from ``start`` to ``close``."""
        if self._server is None:
            raise TrainerError("the policy is served after start() only; call it first")
        return self._server

    @property
    def model_name(self) -> str:
        """Name of the policy at its server."""
        return self.learner.policy.name

    @property
    def base_url(self) -> str:
        """URL of the policy's server."""
        return self.server.url

    @property
    def learner(self) -> Learner:
        """The policy and its optimiser."""
        if self._learner is None:
            raise TrainerError("groups can be submitted after start() only; call it first")
        return self._learner

    def check(self) -> None:
        """Raise ExtraMissingError where torch is not installed."""
        require_torch()

    async def start(self) -> int:
        """Load the policy and its last checkpoint, and serve it; return how many updates were made before."""
        torch = require_torch()
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        from hypertrainer_grpo.grpo import GrpoConfig
        from hypertrainer_grpo.server import PolicyServer

        config = GrpoConfig(**self._settings)
        self._learner = await asyncio.to_thread(self._load, config)
        self._server = PolicyServer(self._learner.policy)
        self._server.version = self._learner.step
        self._server.start()
        return self._learner.step

    async def submit(self, group: ScoredGroup) -> Receipt:
        """Keep a group, and learn from all that are kept once they are enough."""
        reason = self._unusable(group)
        if reason:
            return Receipt(accepted=False, step=self.learner.step, detail=reason)
        self._waiting.append(group)
        if self._groups_per_update is None or len(self._waiting) < self._groups_per_update:
            return Receipt(accepted=True, step=self.learner.step)
        metrics = await self.update()
        return Receipt(accepted=True, step=self.learner.step, metrics=metrics)

    async def update(self) -> dict[str, float]:
        """Learn from the groups that were submitted since the last update, few as they may be; return metrics."""
        if not self._waiting:
            return {}
        groups, self._waiting = self._waiting, []
        return await asyncio.to_thread(self._update, groups)

    async def close(self) -> None:
        """End the server; groups that wait for an update are dropped."""
        if self._server is not None:
            server, self._server = self._server, None
            await asyncio.to_thread(server.stop)

    def _load(self, config: GrpoConfig) -> Learner:
        from hypertrainer_grpo.learner import Learner

        learner = Learner(self._make_policy(), config, self.directory, save_every=self._save_every)
        if not learner.resume():
            learner.save()  # what is drawn before the first update is of these weights, whatever made them
        return learner

    def _make_policy(self) -> Policy:
        if callable(self._policy_name):
            return cast("Policy", self._policy_name())
        kind = Kind(word="policy", members=("render", "text"))
        return cast("Policy", load_named(kind, self._policy_name))

    def _update(self, groups: list[ScoredGroup]) -> dict[str, float]:
        with self.server.paused():
            metrics = self.learner.update(groups)
            self.server.version = self.learner.step
        return metrics

    def _unusable(self, group: ScoredGroup) -> str:
        context = self.learner.policy.context
        if not group.samples:
            return "no trajectory has a token record"
        if not all(sample.has_logprobs for sample in group.samples):
            return "the model's server gave no log-probabilities"
        longest = max(len(sample.segment.ids) for sample in group.samples)
        return f"a sequence of {longest} tokens is longer than the policy's {context}" if longest > context else ""


def require_torch() -> Any:  # noqa: ANN401 - the module
    """Return torch.

    Raises:
        ExtraMissingError: it is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ExtraMissingError("trainers", "torch", "train") from error
    return torch


_: type[PolicyTrainer] = Grpo
