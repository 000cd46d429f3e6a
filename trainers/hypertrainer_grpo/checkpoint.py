"""Checkpoints: all that a training goes on from, in one file that is there whole or not at all. Imports torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn

from hyperruntime.errors import TrainerError

_FORMAT = 1
_NAME = re.compile(r"step-(\d{6,})\.pt")


@attrs.frozen(kw_only=True)
class Checkpoint:
    """The state of a training after a step.

    Attributes:
        step: how many updates were made; also the version of the policy.
        network: its weights.
        optimizer: its state.
        reference: weights of the reference policy, or None.
        facts: JSON values of whoever trains.
    """

    step: int
    network: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    reference: Mapping[str, Any] | None
    facts: Mapping[str, Any]


def save_checkpoint(directory: str | Path, checkpoint: Checkpoint, *, keep: int = 3) -> Path:
    """Write a checkpoint with the state of torch's random numbers; keep the last ``keep``; return its path."""
    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"step-{checkpoint.step:06d}.pt"
    partial = root / f".{path.name}.{os.getpid()}"
    values = attrs.asdict(checkpoint, recurse=False)
    try:
        with partial.open("wb") as file:
            torch.save({**values, "format": _FORMAT, "random": torch.get_rng_state()}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _sync_directory(root)
    for old in list_checkpoints(root)[:-keep]:
        old.unlink()
    return path


def list_checkpoints(directory: str | Path) -> list[Path]:
    """Return the checkpoints of a directory, the last one last."""
    found = [
        (int(match[1]), path) for path in Path(directory).glob("step-*.pt") if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found)]


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Return a checkpoint, and set torch's random numbers to what they were. No code in the file is run.

    Raises:
        TrainerError: it is damaged, or of another format.
    """
    try:
        values = torch.load(path, weights_only=True)
        if values.pop("format") != _FORMAT:
            raise TrainerError(f"{path} was written by another release; train anew, or with that release")
        random = values.pop("random")
        checkpoint = Checkpoint(**values)
    except TrainerError:
        raise
    except Exception as error:  # torch raises whatever its reader stumbles over
        what = " ".join(str(error).split())[:200]
        raise TrainerError(
            f"{path} cannot be read as a checkpoint: {what}; remove it, and go on from the one before"
        ) from error
    torch.set_rng_state(random)
    return checkpoint


def restore(network: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Give a network and an optimizer the state of a checkpoint.

    Raises:
        TrainerError: it is that of another network.
    """
    try:
        network.load_state_dict(dict(checkpoint.network))
        optimizer.load_state_dict(dict(checkpoint.optimizer))
    except (RuntimeError, ValueError, KeyError) as error:
        what = " ".join(str(error).split())[:200]
        raise TrainerError(
            f"the checkpoint is that of another policy: {what}; name the policy it was made with"
        ) from error


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
