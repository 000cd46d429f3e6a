"""Convert the options of a run to JSON values and back, and compare them when a run resumes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import RunError
from hyperruntime.option_fields import from_json, option_fields, to_json
from hyperruntime.rollout.run.options import RolloutOptions

# Fields that may change when a run resumes, in whole or in part; the name of the model may not.
_CHANGEABLE = {field.path[0] for field in option_fields(RolloutOptions) if field.option.changes}


def options_to_json(options: RolloutOptions) -> dict[str, Any]:
    """Return options as JSON values; they contain names of variables with keys, never keys."""
    return to_json(options)


def options_from_json(value: Mapping[str, Any]) -> RolloutOptions:
    """Return options from their JSON value.

    Raises:
        ArchiveError: the value is not valid.
    """
    return from_json(RolloutOptions, value, strict=True)


def check_same(run: Mapping[str, Any], options: RolloutOptions, run_dir: Path) -> RolloutOptions:
    """Return the options of a resumed run: the stored ones, with the new values of those that may change.

    Args:
        run: content of ``run.json``.
        options: the new options.
        run_dir: directory of the run, for messages.

    Raises:
        RunError: an option differs that may not change.
    """
    stored = options_from_json(run.get("options", {}))
    for field in attrs.fields(RolloutOptions):
        before, now = getattr(stored, field.name), getattr(options, field.name)
        if field.name == "model":
            before, now = _model_name(stored), _model_name(options)
        elif field.name in _CHANGEABLE or field.name == "seed":
            continue
        if before != now:
            raise RunError(
                f"{str(run_dir)!r} was started with {field.name}={before!r}, not {now!r}; resume it with "
                "`hyperrun rollout run --resume-from`, or use another --run-id"
            )
    return attrs.evolve(stored, **{name: getattr(options, name) for name in _CHANGEABLE})


def _model_name(options: RolloutOptions) -> str | None:
    return None if options.model is None else options.model.name
