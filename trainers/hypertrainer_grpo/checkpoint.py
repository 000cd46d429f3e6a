"""Checkpoints: the whole state of a training in one file, written atomically. Imports torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from hyperruntime.errors import TrainerError
from hyperruntime.storage.atomic import sync_directory

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


def save_checkpoint(directory: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint with the state of torch's random number generator, and remove all but the last three.

    Args:
        directory: directory of the checkpoints; created if missing.
        checkpoint: the checkpoint.
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
    sync_directory(root)
    for old in list_checkpoints(root)[:-_KEPT]:
        old.unlink()


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
        checkpoint = Checkpoint(**{name: values[name] for name in attrs.fields_dict(Checkpoint)})
    except TrainerError:
        raise
    except Exception as error:  # torch.load may raise anything
        what = " ".join(str(error).split())[:200]
        raise TrainerError(
            f"{path} cannot be read as a checkpoint: {what}; remove it to resume from the one before"
        ) from error
    torch.set_rng_state(random)
    return checkpoint
