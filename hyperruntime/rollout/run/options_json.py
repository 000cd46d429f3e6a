"""Convert the options of a run to JSON values and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import cattrs

from hyperruntime.errors import ArchiveError, RunError
from hyperruntime.rollout.run.options import RolloutOptions

# Options that may change when a run resumes; the name of the model may not.
CHANGEABLE = ("parallel", "attempts", "give_up_after", "pool", "retry_failed", "model")


def _converter() -> cattrs.Converter:
    made = cattrs.Converter(forbid_extra_keys=True)
    made.register_structure_hook_func(_is_union, lambda value, _: tuple(value) if isinstance(value, list) else value)
    return made


def _is_union(kind: Any) -> bool:  # noqa: ANN401 - a type
    """Return whether a type is that of ``gpus``, ``str | tuple[str, ...] | None``; in JSON it is a list or text."""
    arguments = getattr(kind, "__args__", ())
    return str in arguments and any(getattr(one, "__origin__", None) is tuple for one in arguments)


def options_to_json(options: RolloutOptions) -> dict[str, Any]:
    """Return options as JSON values; they contain names of variables with keys, never keys."""
    value: dict[str, Any] = _converter().unstructure(options)
    return value


def options_from_json(value: Mapping[str, Any]) -> RolloutOptions:
    """Return options from their JSON value.

    Raises:
        ArchiveError: the value is not valid.
    """
    try:
        return _converter().structure(value, RolloutOptions)
    except (cattrs.BaseValidationError, TypeError, ValueError, KeyError) as error:
        raise ArchiveError(
            f"the options of the run cannot be read: {error}; check whether another version wrote them"
        ) from error


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
        elif field.name in CHANGEABLE or field.name == "seed":
            continue
        if before != now:
            raise RunError(
                f"{str(run_dir)!r} was started with {field.name}={before!r}, not {now!r}; resume it with "
                "`hyperrun rollout run --resume-from`, or use another --run-id"
            )
    return attrs.evolve(stored, **{name: getattr(options, name) for name in CHANGEABLE})


def _model_name(options: RolloutOptions) -> str | None:
    return None if options.model is None else options.model.name
