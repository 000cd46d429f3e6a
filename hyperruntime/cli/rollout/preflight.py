"""``hyperrun rollout preflight``: check that a model server returns what rollouts record."""

from __future__ import annotations

from typing import Any

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.rollout.options import make_model, model_decorators
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.cli.tables import json_option, print_json, print_table
from hyperruntime.rollout.preflight import preflight as check_model


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
