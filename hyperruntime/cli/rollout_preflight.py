"""``hyperrun rollout preflight``: check that a model's server gives what rollouts record."""

from __future__ import annotations

import click

from hyperruntime.cli.command import Command


@click.command(cls=Command)
def preflight() -> None:
    """Check that a model's server gives what rollouts record."""
    raise click.UsageError("not here yet")
