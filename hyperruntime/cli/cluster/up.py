"""``hyperrun cluster up``: ask for nodes and keep them until Ctrl-C."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.errors import ClusterError

if TYPE_CHECKING:
    from hyperruntime.cluster.config import ClusterConfig


@click.command(cls=Command, epilog=example("hyperrun cluster up cluster.toml --nodes 2"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help="How many; by default max_nodes of FILE.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("."),
    show_default=True,
    help="Directory for logs, which all nodes must see.",
)
@click.pass_obj
def up(state: State, file: Path, nodes: int | None, directory: Path) -> None:
    """Ask for nodes as FILE says, print each one that joins, and keep them.

    Ctrl-C or `hyperrun cluster down` ends the command and cancels the jobs. Use it to test a
    configuration with all its nodes; commands with --cluster ask for their own nodes.
    """
    from hyperruntime.cluster.config import read_config

    config = read_config(file, state.runtime)
    run_until_signal(_keep(config, nodes, shared_directory(directory)), state)


def shared_directory(directory: Path) -> Path:
    """Return the absolute path of a directory that all nodes see.

    Raises:
        ClusterError: it is not a directory.
    """
    if not directory.is_dir():
        raise ClusterError(
            f"{directory.resolve()} is not a directory; name one that all nodes share with "
            "--directory"
        )
    return directory.resolve()


async def _keep(config: ClusterConfig, count: int | None, directory: Path) -> None:
    import asyncio

    from hyperruntime.cluster.cluster import Cluster
    from hyperruntime.cluster.head import Node
    from hyperruntime.cluster.job_directory import JOBS_PREFIX, job_directory
    from hyperruntime.errors import NodeLostError

    count = count or config.max_nodes
    config = attrs.evolve(config, min_nodes=count, max_nodes=max(count, config.max_nodes))

    def joined(node: Node) -> None:
        job = f" (job {node.facts.job})" if node.facts.job else ""
        click.echo(f"{node.name}: ready on {node.facts.host}{job}")
        node.on_leaving(partial(leaves, node))
        node.on_lost(partial(lost, node))

    def leaves(node: Node) -> None:
        if not node.dismissed:
            click.echo(f"{node.name}: takes no new work: {node.leaving}")

    def lost(node: Node, error: NodeLostError) -> None:
        if not node.dismissed:
            click.echo(str(error))

    with job_directory(directory, JOBS_PREFIX) as jobs:
        async with Cluster(config, jobs) as cluster:
            cluster.on_node(joined)
            while True:
                await cluster.wait_for_node()
                await asyncio.sleep(1)
