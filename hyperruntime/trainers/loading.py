"""Find trainers by entry point, ``module:Class`` or ``path/file.py:Class``, and create them with a
user's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import attrs

from hyperruntime.registry import TRAINERS, load_trainer_class
from hyperruntime.rollout.loading import Kind, load_named
from hyperruntime.trainers import Trainer
from hyperruntime.trainers.on_policy import PolicyTrainer

_KIND = Kind(
    word="trainer",
    members=("start", "submit", "close"),
    group=TRAINERS,
    load=load_trainer_class,
    option="--trainer-option",
)


_POLICY_KIND = attrs.evolve(_KIND, members=(*_KIND.members, "check", "update"))


def load_policy_trainer(reference: str, options: Mapping[str, Any] | None = None) -> PolicyTrainer:
    """Create a trainer that holds the policy; arguments and errors are those of
    :func:`load_trainer`.
    """
    return cast(PolicyTrainer, load_named(_POLICY_KIND, reference, options))


def load_trainer(reference: str, options: Mapping[str, Any] | None = None) -> Trainer:
    """Create a trainer.

    Args:
        reference: name of an entry point, or ``module:Class``, or ``path/file.py:Class``.
        options: values by name; text is converted as in ``load_environment``.

    Raises:
        SpecError: the trainer does not exist, or an option is unknown, missing or invalid.
        DriverLoadError: its code is broken.
    """
    return cast(Trainer, load_named(_KIND, reference, options))
