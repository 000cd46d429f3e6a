"""The options of a run as JSON values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import cattrs

from hyperruntime.errors import ArchiveError, RunError
from hyperruntime.rollout.run.options import RolloutOptions

# What may be otherwise when a run goes on: it changes how fast trajectories are made, and not which.
CHANGEABLE = ("parallel", "attempts", "give_up_after", "pool", "retry_failed", "model")


def _converter() -> cattrs.Converter:
    made = cattrs.Converter(forbid_extra_keys=True)
    made.register_structure_hook_func(_is_union, lambda value, _: tuple(value) if isinstance(value, list) else value)
    return made


def _is_union(kind: Any) -> bool:  # noqa: ANN401 - a type
    """Tell the types of GPUs, ``str | tuple[str, ...] | None``, whose JSON values are lists or text."""
    arguments = getattr(kind, "__args__", ())
    return str in arguments and any(getattr(one, "__origin__", None) is tuple for one in arguments)


def options_to_json(options: RolloutOptions) -> dict[str, Any]:
    """Return options as JSON values; they hold names of keys and never keys."""
    value: dict[str, Any] = _converter().unstructure(options)
    return value


def options_from_json(value: Mapping[str, Any]) -> RolloutOptions:
    """Return options from their JSON value.

    Raises:
        ArchiveError: it is none.
    """
    try:
        return _converter().structure(value, RolloutOptions)
    except (cattrs.BaseValidationError, TypeError, ValueError, KeyError) as error:
        raise ArchiveError(
            f"the options of the run cannot be read: {error}; was it made by another version?"
        ) from error


def check_same(run: Mapping[str, Any], options: RolloutOptions, run_dir: Path) -> RolloutOptions:
    """Return the options with which a run goes on: those it has, and of the new ones what may change.

    Raises:
        RunError: another option is not as the run has it.
    """
    stored = options_from_json(run.get("options", {}))
    for field in attrs.fields(RolloutOptions):
        before, now = getattr(stored, field.name), getattr(options, field.name)
        if field.name == "model":
            before, now = _model_name(stored), _model_name(options)
        elif field.name in CHANGEABLE or field.name == "seed":
            continue
        if before != now:
            raise RunError(
                f"{str(run_dir)!r} was begun with {field.name}={before!r}, not {now!r}; go on with it by "
                "`hyperrun rollout run --resume-from`, or give another --run-id"
            )
    return attrs.evolve(stored, **{name: getattr(options, name) for name in CHANGEABLE})


def _model_name(options: RolloutOptions) -> str | None:
    return None if options.model is None else options.model.name
