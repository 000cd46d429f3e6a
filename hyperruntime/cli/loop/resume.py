"""Check the options of ``generate --resume-from``: most of them cannot change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click
from click.core import ParameterSource

from hyperruntime.cli.loop.options import make_options
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.loop.run.plan import settled_references
from hyperruntime.loop.run_files.options import GenerateOptions

_BUDGETS = tuple(field.name for field in attrs.fields(GenerateOptions) if field.name.startswith("budget_"))
CHANGEABLE = ("max_generation", "parallel", "image", "gateway", *_BUDGETS)
_LIMITS = ("memory", "cpus", "pids", "disk")
_PATHS = ("agent", "copy_root_dir", "agent_archive_path", "gateway", "output_dir_parent")
_SAID = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def changed_options(
    ctx: click.Context, values: Mapping[str, Any], stored: GenerateOptions, run_dir: str
) -> dict[str, Any]:
    """Return the given options that are ``CHANGEABLE``; other given options must equal those of the run.

    Args:
        ctx: knows which options were given.
        values: the values of all options, by name.
        stored: the options of the run.
        run_dir: the run directory.

    Raises:
        WrongUsageError: a given option differs from the run's and cannot change.
        SpecError: a value is not allowed.
    """
    said = {name for name in values if ctx.get_parameter_source(name) in _SAID}
    kept = {"domains": [stored.domains]} if "domains" not in said else {}
    asked = make_options({**values, **kept})
    here = {"output_dir_parent": os.path.dirname(os.path.abspath(run_dir)), "run_id": stored.run_id}
    for name in sorted(said.difference(CHANGEABLE)):
        field = "limits" if name in _LIMITS else name
        before = here.get(field, getattr(stored, field))
        if _comparable(field, getattr(asked, field)) != _comparable(field, before):
            raise WrongUsageError(
                f"--{name.replace('_', '-')} cannot change when a run is resumed; run {str(Path(run_dir))!r} has "
                f"{_shown(name, before)}; leave it out, or start another run"
            )
    return {name: getattr(asked, name) for name in CHANGEABLE if name in said}


def _comparable(field: str, value: Any) -> Any:  # noqa: ANN401 - of any field
    if field == "domains":
        return settled_references(value)
    return os.path.abspath(value) if field in _PATHS and isinstance(value, str) else value


def _shown(name: str, value: Any) -> str:  # noqa: ANN401 - of any field
    if name in _LIMITS:
        return repr(getattr(value, f"{name}_bytes" if name in ("memory", "disk") else name))
    return " ".join(map(str, value)) if isinstance(value, tuple) else repr(value)
