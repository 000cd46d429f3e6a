"""``hyperrun cluster``: the table of its commands, which are imported only when called."""

from __future__ import annotations

import click

from hyperruntime.cli.command import LazyGroup, example

# name: (module below hyperruntime.cli, attribute of the module, short help in
# `hyperrun cluster --help`)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "check": ("cluster.check", "check", "Start a node's job, and report what works there."),
    "down": ("cluster.status", "down", "End an open cluster."),
    "logs": ("cluster.status", "logs", "Print what a node has logged."),
    "status": ("cluster.status", "status", "List the nodes of open clusters."),
    "up": ("cluster.up", "up", "Ask for nodes and keep them until Ctrl-C."),
}


@click.group(cls=LazyGroup, table=COMMANDS, epilog=example("hyperrun cluster check cluster.toml"))
def cluster() -> None:
    """Use many nodes of a batch system, such as Slurm. Needs the extra `hpc`."""
