"""A policy with its optimizer, its reference and its checkpoints. Imports torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from hyperruntime.errors import TrainerError
from hyperruntime.rollout.training_data.samples import ScoredGroup
from hypertrainer_grpo.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, save_checkpoint
from hypertrainer_grpo.grpo import GrpoConfig, update
from hypertrainer_grpo.policy import Policy


class Learner:
    """The state that an update changes and a checkpoint stores.

    Attributes:
        policy: the policy that is trained.
        step: number of updates made; also the version of the policy.
    """

    def __init__(self, policy: Policy, config: GrpoConfig, directory: Path, *, save_every: int = 1) -> None:
        """Start at step 0; a copy of the policy becomes the reference if ``kl_weight`` is not 0.

        Args:
            policy: the policy; it is changed.
            config: options of the updates.
            directory: directory of the checkpoints.
            save_every: updates between checkpoints.
        """
        self.policy = policy
        self.step = 0
        self._config, self._directory, self._save_every = config, directory, save_every
        self._optimizer = torch.optim.Adam(policy.network.parameters(), lr=config.learning_rate)
        self._reference: nn.Module | None = copy.deepcopy(policy.network) if config.kl_weight else None

    def resume(self) -> bool:
        """Load the last checkpoint; return whether there is one.

        Raises:
            TrainerError: the checkpoint is damaged, belongs to another policy, or lacks a required reference policy.
        """
        found = list_checkpoints(self._directory)
        if not found:
            return False
        checkpoint = load_checkpoint(found[-1])
        try:
            self.policy.network.load_state_dict(dict(checkpoint.network))
            self._optimizer.load_state_dict(dict(checkpoint.optimizer))
        except (RuntimeError, ValueError, KeyError) as error:
            what = " ".join(str(error).split())[:200]
            why = f"the checkpoint belongs to another policy: {what}; use the policy that wrote it"
            raise TrainerError(why) from error
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate
        if self._reference is not None:
            if checkpoint.reference is None:
                raise TrainerError(f"{found[-1]} has no reference policy; use kl_weight 0, or start a new training")
            self._reference.load_state_dict(dict(checkpoint.reference))
        self.step = checkpoint.step
        return True

    def update(self, groups: Sequence[ScoredGroup]) -> dict[str, float]:
        """Update the policy from groups, and write a checkpoint every ``save_every`` updates; return metrics."""
        metrics = update(self.policy.network, self._optimizer, groups, self._config, self._reference)
        self.step += 1
        if self.step % self._save_every == 0:
            self.save()
        return metrics

    def save(self) -> None:
        """Write a checkpoint."""
        checkpoint = Checkpoint(
            step=self.step,
            network=self.policy.network.state_dict(),
            optimizer=self._optimizer.state_dict(),
            reference=None if self._reference is None else self._reference.state_dict(),
        )
        save_checkpoint(self._directory, checkpoint)
