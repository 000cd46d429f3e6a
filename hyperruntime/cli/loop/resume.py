"""Check the options of ``generate --resume-from``: most of them cannot change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime.cli.field_options import given
from hyperruntime.cli.loop.options import make_options
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.loop.run.plan import settled_references
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.option_fields import OptionField, option_fields


def changed_options(
    ctx: click.Context, values: Mapping[str, Any], stored: GenerateOptions, run_dir: str
) -> dict[str, Any]:
    """Return the given options that may change; other given options must equal those of the run.

    Args:
        ctx: knows which options were given.
        values: the values of all options, by name.
        stored: the options of the run.
        run_dir: the run directory.

    Raises:
        WrongUsageError: a given option differs from the run's and cannot change.
        SpecError: a value is not allowed.
    """
    said = given(ctx, values, in_file=True)
    kept = {"domains": [stored.domains]} if "domains" not in said else {}
    asked = make_options({**values, **kept})
    here = attrs.evolve(stored, output_dir_parent=os.path.dirname(os.path.abspath(run_dir)))
    fields = sorted((field for field in option_fields(GenerateOptions) if field.name in said), key=lambda one: one.name)
    for field in fields:
        if not field.option.changes and _comparable(field, asked) != _comparable(field, here):
            before = field.of(here)
            shown = " ".join(map(str, before)) if isinstance(before, tuple) else repr(before)
            raise WrongUsageError(
                f"{field.flag} cannot change when a run is resumed; run {str(Path(run_dir))!r} has {shown}; leave it "
                "out, or start another run"
            )
    return {field.name: field.of(asked) for field in fields if field.option.changes}


def _comparable(field: OptionField, options: GenerateOptions) -> Any:  # noqa: ANN401 - of any field
    value = field.of(options)
    if field.name == "domains":
        return settled_references(value)
    return os.path.abspath(value) if field.option.kind == "path" and value is not None else value
