"""The model of rollouts and its server: their options on the command line, and ``hyperrun rollout
preflight``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.field_options import add_options, click_option
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.cli.tables import json_option, print_json, print_table
from hyperruntime.option_fields import option_fields
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.preflight import preflight as check_model
from hyperruntime.rollout.run.options import RolloutOptions

_MODEL_FIELDS = [field for field in option_fields(RolloutOptions) if field.path[0] == "model"]
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


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun rollout preflight --model qwen --base-url http://127.0.0.1:8000/v1 "
        "--require-tokens",
        "hyperrun rollout preflight --model qwen --base-url http://127.0.0.1:30000 --wire "
        "sglang --tokenizer ./qwen",
    ),
)
@model_decorators
@click.option(
    "--require-tokens", is_flag=True, help="Fail if a turn has no token ids and logprobs."
)
@json_option
@click.pass_obj
def preflight(state: State, /, as_json: bool, require_tokens: bool, **values: Any) -> int:  # noqa: ANN401 - the options by name
    """Check that the chat template renders tools and that the model server returns token ids and
    logprobs.

    Exits with 0 if no check failed, else with 1.
    """
    checks = run_until_signal(check_model(make_model(values), require_tokens=require_tokens), state)
    if as_json:
        print_json(checks)
    else:
        print_table(
            ("check", "state", "detail"),
            [(check.name, check.state, check.detail) for check in checks],
        )
    return 1 if any(check.state == "failed" for check in checks) else 0
