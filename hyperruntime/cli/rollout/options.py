"""The options of ``hyperrun rollout run``: the fields of ``RolloutOptions``, and options of the
command itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from hyperruntime.cli.config_file import config_option, generate_table
from hyperruntime.cli.consent import trust_option
from hyperruntime.cli.field_options import add_options, all_options, click_option, field_values
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.option_fields import changed, option_fields
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import RolloutOptions

_CONFIG = config_option(
    partial(generate_table, name="rollout"),
    "TOML with these options in [rollout]; the command line wins.",
)
_DIRECTORY = (
    click.option(
        "--run-id",
        metavar="TEXT",
        help="Name the run directory rollout_<run-id>; default: the time.",
    ),
    click.option(
        "--output-dir-parent",
        metavar="DIR",
        default="./outputs",
        show_default=True,
        help="Directory of the run directories.",
    ),
    click.option("--output-dir", metavar="DIR", help="The run directory itself."),
    click.option(
        "--resume-from",
        metavar="RUN_DIR",
        help="Resume this run; only --parallel, --attempts, "
        "--give-up-after, --retry-failed, --cluster, the pool and the model's server may change.",
    ),
    click.option(
        "--resume-or-start",
        is_flag=True,
        help="Resume the run of this --run-id or --output-dir if it exists, else start it.",
    ),
    trust_option,
    click.option(
        "--cluster",
        metavar="FILE",
        help="Make trajectories on the nodes of the [cluster] table of this TOML "
        "file; the options of the pool are for each node.",
    ),
)
_MODEL_FIELDS = [field for field in option_fields(RolloutOptions) if field.path[0] == "model"]

option_decorators = all_options(
    RolloutOptions, {"environment": (_CONFIG,), "retry_failed": _DIRECTORY}
)
model_decorators = add_options(click_option(field) for field in _MODEL_FIELDS)


def make_model(values: Mapping[str, Any]) -> ModelOptions:
    """Return the model and its server, from the command line's values.

    Raises:
        WrongUsageError: ``--model`` or ``--base-url`` is missing.
        SpecError: a value is not allowed.
    """
    for name in ("model", "base_url"):
        if not values.get(name):
            raise WrongUsageError(
                f"--{name.replace('_', '-')} is missing; name the model with --model NAME and "
                "--base-url URL"
            )
    given = {field.path[-1]: values.get(field.name) for field in _MODEL_FIELDS}
    return ModelOptions(**{name: value for name, value in given.items() if value is not None})


def make_options(values: Mapping[str, Any]) -> RolloutOptions:
    """Return the run options for the command line's values.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: the environment or the model is missing.
    """
    if not values["environment"]:
        raise WrongUsageError(
            "give --environment NAME; `hyperrun rollout environments` lists the installed ones"
        )
    found = {
        path: value
        for path, value in field_values(RolloutOptions, values).items()
        if path[0] != "model"
    }
    found["environment_options",] = dict(values["option"])
    env = dict(values["env"])
    found["container", "env"] = {name: text for name, text in env.items() if text is not None}
    found["env_names",] = tuple(name for name, text in env.items() if text is None)
    return changed(
        RolloutOptions(environment=values["environment"], model=make_model(values)), found
    )
