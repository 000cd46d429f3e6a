"""Find trainers: by entry point, ``module:Class`` or ``path/file.py:Class``, made with a user's options."""

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
    """Make a trainer that holds the policy itself; as :func:`load_trainer`."""
    return cast(PolicyTrainer, load_named(_POLICY_KIND, reference, options))


def load_trainer(reference: str, options: Mapping[str, Any] | None = None) -> Trainer:
    """Make a trainer; options as those of environments.

    Raises:
        SpecError: there is no such trainer, it takes no such option, or an option is of the wrong form.
        DriverLoadError: its code is broken.
    """
    return cast(Trainer, load_named(_KIND, reference, options))
