"""The options of ``hyperrun generate``, new or with ``--resume-from``, where most of them cannot change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime import registry
from hyperruntime.cli.config_file import config_option, config_table, use_limits
from hyperruntime.cli.field_options import all_options, changeable_options, field_values, given
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.params import LIMITS, RUN_DIRECTORY
from hyperruntime.errors import unknown_name
from hyperruntime.loop.run.plan import settled_references
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.option_fields import OptionField, changed, option_fields

_CONFIG = config_option(
    config_table, "TOML with these options in [generate] and the gateway's in [gateway]; the command line wins."
)
_RUNTIME = click.option("--runtime", metavar="NAME", help="Container runtime, as in `hyperrun --runtime NAME`.")
_RESUME = click.option("--resume-from", type=RUN_DIRECTORY, metavar="RUN_DIR",
    help="Resume this run; only its length, --parallel, --image, --gateway and budgets may change.")  # fmt: skip
_LIMITS = click.option("--limits", type=LIMITS, is_eager=True, expose_value=False, callback=use_limits,
    metavar="memory=SIZE,cpus=N,pids=N,disk=SIZE", help="Set several of the next four options.")  # fmt: skip

option_decorators = all_options(
    GenerateOptions, {"domains": (_CONFIG, _RUNTIME), "executor": (_RESUME,), "memory": (_LIMITS,)}
)
resume_decorators = changeable_options(GenerateOptions)


def make_options(values: Mapping[str, Any]) -> GenerateOptions:
    """Return the run options for the command line's values, with a run id and a seed.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: no domain is given, or the executor is unknown.
    """
    found = field_values(GenerateOptions, values)
    domains = found["domains",]
    if not domains:
        raise WrongUsageError("name what to evaluate on with --domains; `hyperrun domains` lists what there is")
    known = registry.plugins(registry.EXECUTORS)
    if values["executor"] not in known:
        raise WrongUsageError(unknown_name("executor", values["executor"], known))
    return changed(GenerateOptions(domains=domains), found).settled()


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
    fields = [field for field in option_fields(GenerateOptions) if field.name in said]
    for field in sorted(fields, key=lambda one: one.name):
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
