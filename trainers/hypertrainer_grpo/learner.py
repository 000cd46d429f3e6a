"""A policy with its optimizer, its reference and its checkpoints. Imports torch."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn

from hyperruntime.errors import TrainerError
from hyperruntime.rollout.training_data.samples import ScoredGroup
from hyperruntime.storage.atomic import sync_directory
from hypertrainer_grpo.grpo import GrpoConfig, update
from hypertrainer_grpo.policy import Policy

_FORMAT = 1
_NAME = re.compile(r"step-(\d{6,})\.pt")
_KEPT = 3


@attrs.frozen(kw_only=True)
class Checkpoint:
    """The state of a training after a step.

    Attributes:
        step: number of updates made; also the version of the policy.
        network: weights of the policy.
        optimizer: state of the optimizer.
        reference: weights of the reference policy, or None.
    """

    step: int
    network: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    reference: Mapping[str, Any] | None


class Learner:
    """The state that an update changes and a checkpoint stores.

    Attributes:
        policy: the policy that is trained.
        step: number of updates made; also the version of the policy.
    """

    def __init__(
        self, policy: Policy, config: GrpoConfig, directory: Path, *, save_every: int = 1
    ) -> None:
        """Start at step 0; a copy of the policy becomes the reference if ``kl_weight`` is not 0.

        Args:
            policy: the policy; it is changed.
            config: options of the updates.
            directory: directory of the checkpoints.
            save_every: updates between checkpoints.
        """
        self.policy = policy
        self.step = 0
        self._config = config
        self._directory = directory
        self._save_every = save_every
        self._optimizer = torch.optim.Adam(policy.network.parameters(), lr=config.learning_rate)
        self._reference: nn.Module | None = (
            copy.deepcopy(policy.network) if config.kl_weight else None
        )

    def resume(self) -> bool:
        """Load the last checkpoint; return whether there is one.

        Raises:
            TrainerError: the checkpoint is damaged, belongs to another policy, or lacks a required
                reference policy.
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
                raise TrainerError(
                    f"{found[-1]} has no reference policy; use kl_weight 0, or start a new training"
                )
            self._reference.load_state_dict(dict(checkpoint.reference))
        self.step = checkpoint.step
        return True

    def update(self, groups: Sequence[ScoredGroup]) -> dict[str, float]:
        """Update the policy from groups, and write a checkpoint every ``save_every`` updates;
        return metrics.
        """
        metrics = update(
            self.policy.network, self._optimizer, groups, self._config, self._reference
        )
        self.step += 1
        if self.step % self._save_every == 0:
            self.save()
        return metrics

    def save(self) -> None:
        """Write a checkpoint with the state of torch's random number generator, and remove all but
        the last three.
        """
        values = {
            "format": _FORMAT,
            "random": torch.get_rng_state(),
            "step": self.step,
            "network": self.policy.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "reference": None if self._reference is None else self._reference.state_dict(),
        }
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"step-{self.step:06d}.pt"
        partial = self._directory / f".{path.name}.{os.getpid()}"
        try:
            with partial.open("wb") as file:
                torch.save(values, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        sync_directory(self._directory)
        for old in list_checkpoints(self._directory)[:-_KEPT]:
            old.unlink()


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a directory, sorted by step."""
    found = [
        (int(match[1]), path)
        for path in directory.glob("step-*.pt")
        if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found)]


def load_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint, and restore the state of torch's random number generator; no code of the
    file is run.

    Raises:
        TrainerError: the file is damaged, or has another format.
    """
    try:
        values = torch.load(path, weights_only=True)
        if values.pop("format") != _FORMAT:
            raise TrainerError(
                f"{path} was written by another release; use that release, or start a new training"
            )
        random = values.pop("random")
        checkpoint = Checkpoint(**values)
    except TrainerError:
        raise
    except Exception as error:  # torch.load may raise anything
        what = " ".join(str(error).split())[:200]
        raise TrainerError(
            f"{path} cannot be read as a checkpoint: {what}; remove it to resume from the one "
            "before"
        ) from error
    torch.set_rng_state(random)
    return checkpoint
