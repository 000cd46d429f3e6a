"""The options of ``hyperrun generate``, new or with ``--resume-from``, where most of them cannot
change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime import registry
from hyperruntime.cli.config_file import config_option, config_table, use_limits
from hyperruntime.cli.consent import trust_option
from hyperruntime.cli.field_options import (
    add_options,
    all_options,
    changeable,
    changeable_options,
    field_values,
    given,
)
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.params import LIMITS, RUN_DIRECTORY
from hyperruntime.errors import unknown_name
from hyperruntime.loop.run.plan import absolute_references
from hyperruntime.loop.run_files.layout import PREFIX
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.option_fields import OptionField, changed, option_fields

_CONFIG = config_option(
    config_table,
    "TOML with these options in [generate] and the gateway's in [gateway]; the command line wins.",
)
_RUNTIME = click.option(
    "--runtime", metavar="NAME", help="Container runtime, as in `hyperrun --runtime NAME`."
)
_RESUME = click.option("--resume-from", type=RUN_DIRECTORY, metavar="RUN_DIR",
    help="Resume this run; only the options of `hyperrun resume` may change.")  # fmt: skip
_RESUME_OR_START = click.option("--resume-or-start", is_flag=True,
    help="Resume the run of this --run-id if it exists, else start it; implies --wait. For batch jobs.")  # fmt: skip
_WAIT = click.option("--wait", is_flag=True,
    help="Wait, at most 2 minutes, while a process on another machine that may be dead owns the run.")  # fmt: skip
_LIMITS = click.option("--limits", type=LIMITS, is_eager=True, expose_value=False, callback=use_limits,
    metavar="memory=SIZE,cpus=N,pids=N,disk=SIZE,shm=SIZE", help="Set several of the next five options.")  # fmt: skip

# The options of HyperAgents; a prefix of one of them works as there, although hyperrun has further
# options.
ORIGINAL = (
    "--run-id", "--domains", "--max-generation", "--eval-samples", "--eval-workers", "--parent-selection",
    "--resume-from", "--output-dir-parent", "--meta-patch-files", "--reset-task-agent", "--reset-meta-agent",
    "--copy-root-dir", "--run-baseline", "--optimize-option", "--agent-archive-path", "--eval-test",
    "--skip-staged-eval", "--edit-select-parent",
)  # fmt: skip

CLUSTER = click.option("--cluster", type=click.Path(path_type=Path), metavar="FILE",
    help="Make the generations on nodes of a batch system, as the table [cluster] of this TOML file says.")  # fmt: skip

option_decorators = all_options(
    GenerateOptions,
    {
        "domains": (_CONFIG, _RUNTIME),
        "executor": (CLUSTER, _RESUME, _RESUME_OR_START, _WAIT, trust_option),
        "memory": (_LIMITS,),
    },
)
resume_decorators = add_options((CLUSTER, _WAIT, trust_option, changeable_options(GenerateOptions)))


def make_options(values: Mapping[str, Any]) -> GenerateOptions:
    """Return the run options for the command line's values, with a run id and a seed.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: no domain is given, or the executor is unknown.
    """
    found = field_values(GenerateOptions, values)
    domains = found["domains",]
    if not domains:
        raise WrongUsageError(
            "name what to evaluate on with --domains; `hyperrun domains` lists what there is"
        )
    check_executor(values["executor"])
    return changed(GenerateOptions(domains=domains), found).settled()


def check_executor(name: str) -> None:
    """Raise if no installed executor has this name.

    Raises:
        WrongUsageError: the executor is unknown.
    """
    known = registry.plugins(registry.EXECUTORS)
    if name not in known:
        raise WrongUsageError(unknown_name("executor", name, known))


def changes_by_field(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``hyperrun resume`` by the field of :class:`GenerateOptions`.

    Raises:
        WrongUsageError: the executor is unknown.
    """
    if values["executor"] is not None:
        check_executor(values["executor"])
    return {field.path[0]: values[name] for name, field in changeable(GenerateOptions).items()}


def run_of_id(values: Mapping[str, Any]) -> Path:
    """Return the directory that a run with these options has.

    Raises:
        WrongUsageError: the run id is missing.
    """
    if values["run_id"] is None:
        raise WrongUsageError(
            "--resume-or-start requires --run-id, by which the run is found again"
        )
    return Path(values["output_dir_parent"], f"{PREFIX}{values['run_id']}")


def changed_options(
    ctx: click.Context, values: Mapping[str, Any], stored: GenerateOptions, run_dir: str
) -> dict[str, Any]:
    """Return the given options that may change, by field; other given options must equal those of
    the run.

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
                f"{field.flag} cannot change when a run is resumed; run {str(Path(run_dir))!r} "
                f"has {shown}; leave it out, or start another run"
            )
    return {field.path[0]: field.of(asked) for field in fields if field.option.changes}


def given_paths(ctx: click.Context, values: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """Return the paths of the fields of options that the user gave, on the command line or in a
    file.

    Args:
        ctx: knows which options were given.
        values: the values of all options, by name.
    """
    said = given(ctx, values, in_file=True)
    return {field.path for field in option_fields(GenerateOptions) if field.name in said}


def _comparable(field: OptionField, options: GenerateOptions) -> Any:  # noqa: ANN401 - of any field
    value = field.of(options)
    if field.name == "domains":
        return absolute_references(value)
    return os.path.abspath(value) if field.option.kind == "path" and value is not None else value
