"""What may change when a run is resumed, beside its length: the gateway's configuration and the budgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_UNITS: tuple[tuple[str, Any, str], ...] = (
    ("requests", click.IntRange(min=1), "Requests to models"),
    ("tokens", click.IntRange(min=1), "Tokens"),
    ("money", click.FloatRange(min=0, min_open=True), "Money, by the gateway's prices,"),
)
_WHOSE = (("budget", "the run"), ("budget-generation", "one generation"))


def resume_options(function: Callable[..., Any]) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add them to a command; an option that is not given is None, which keeps what the run has."""
    options = [
        click.option(f"--{prefix}-{unit}", type=kind, help=f"{what} that {who} may use; default: as before.")
        for prefix, who in _WHOSE
        for unit, kind, what in _UNITS
    ]
    options.append(
        click.option("--gateway", metavar="FILE", help="TOML with the gateway's configuration; default: as before.")
    )
    for option in options:
        function = option(function)
    return function
