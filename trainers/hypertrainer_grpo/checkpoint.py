"""Checkpoints: the whole state of a training in one file, written atomically. Imports torch."""

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
        step: number of updates made; also the version of the policy.
        network: weights of the policy.
        optimizer: state of the optimizer.
        reference: weights of the reference policy, or None.
        facts: JSON values of the caller.
    """

    step: int
    network: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    reference: Mapping[str, Any] | None
    facts: Mapping[str, Any]


def save_checkpoint(directory: str | Path, checkpoint: Checkpoint, *, keep: int = 3) -> Path:
    """Write a checkpoint with the state of torch's random number generator; return its path.

    Args:
        directory: directory of the checkpoints; created if missing.
        checkpoint: the checkpoint.
        keep: number of checkpoints to keep; older ones are removed.
    """
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
    """Return the checkpoints of a directory, sorted by step."""
    found = [
        (int(match[1]), path) for path in Path(directory).glob("step-*.pt") if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found)]


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Return a checkpoint, and restore the state of torch's random number generator; no code of the file is run.

    Raises:
        TrainerError: the file is damaged, or has another format.
    """
    try:
        values = torch.load(path, weights_only=True)
        if values.pop("format") != _FORMAT:
            raise TrainerError(f"{path} was written by another release; use that release, or start a new training")
        random = values.pop("random")
        checkpoint = Checkpoint(**values)
    except TrainerError:
        raise
    except Exception as error:  # torch.load may raise anything
        what = " ".join(str(error).split())[:200]
        raise TrainerError(
            f"{path} cannot be read as a checkpoint: {what}; remove it to resume from the one before"
        ) from error
    torch.set_rng_state(random)
    return checkpoint


def restore(network: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Load the state of a checkpoint into a network and an optimizer.

    Args:
        network: the network; it is changed.
        optimizer: its optimizer; it is changed.
        checkpoint: the checkpoint.

    Raises:
        TrainerError: the checkpoint does not fit the network.
    """
    try:
        network.load_state_dict(dict(checkpoint.network))
        optimizer.load_state_dict(dict(checkpoint.optimizer))
    except (RuntimeError, ValueError, KeyError) as error:
        what = " ".join(str(error).split())[:200]
        raise TrainerError(f"the checkpoint belongs to another policy: {what}; use the policy that wrote it") from error


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
