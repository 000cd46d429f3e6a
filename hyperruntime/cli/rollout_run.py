"""``hyperrun rollout run``: let agents attempt items, score them, and write training data."""

from __future__ import annotations

import click

from hyperruntime.cli.command import Command


@click.command(cls=Command)
def run() -> None:
    """Let agents attempt items, score them, and write training data."""
    raise click.UsageError("not here yet")
