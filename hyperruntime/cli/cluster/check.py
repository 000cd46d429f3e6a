"""``hyperrun cluster check``: start a node's job, and report what works there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from hyperruntime.cli.cluster.up import shared_directory
from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.params import DURATION
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.cli.tables import json_option, print_json, print_table
from hyperruntime.driver import Finding
from hyperruntime.errors import ClusterError, HyperRuntimeError

if TYPE_CHECKING:
    from hyperruntime.cluster.config import ClusterConfig
    from hyperruntime.cluster.node_types import NodeType

_WORDS = {True: "ok", False: "FAIL", None: "note"}


@click.command(cls=Command, epilog=example("hyperrun cluster check cluster.toml --image base"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--image", default="", metavar="IMAGE", help="Report whether the node has this image."
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("."),
    show_default=True,
    help="Directory of runs, which all nodes must see.",
)
@click.option(
    "--timeout",
    type=DURATION,
    default="10m",
    show_default=True,
    help="How long to wait for the job.",
)
@json_option
@click.pass_obj
def check(
    state: State, file: Path, image: str, directory: Path, timeout: float, as_json: bool
) -> int:
    """Ask for a node as FILE says, and report what works on it and between it and this machine.

    With Slurm, it asks for one node of each type that the partition has: other CPUs, memory, GPUs
    or features. Exits with 0 if nothing failed, else with 1. The jobs are cancelled at the end and
    on Ctrl-C.
    """
    from hyperruntime.cluster.config import read_config

    config = read_config(file, state.runtime)
    shared = shared_directory(directory)
    checked = run_until_signal(_checked(config, shared, image, timeout), state)
    if as_json:
        print_json(
            [
                {"nodes": kind.names, "type": kind.title, "findings": findings}
                for kind, findings in checked
            ]
        )
    else:
        for kind, findings in checked:
            if kind.names:
                click.echo(f"{kind.title} ({', '.join(kind.names)})")
            rows = [
                (_WORDS[found.ok], found.subject, found.detail, found.next_step)
                for found in findings
            ]
            print_table(("", "what", "found", "next step"), rows)
    return 1 if any(found.ok is False for _, findings in checked for found in findings) else 0


async def _checked(
    config: ClusterConfig, directory: Path, image: str, timeout_s: float
) -> Sequence[tuple[NodeType, Sequence[Finding]]]:
    import asyncio

    from hyperruntime.cluster.node_types import node_types

    # each type has a head and a job of its own
    one = attrs.evolve(config, min_nodes=0, max_nodes=1, port=0, images=())
    kinds = await asyncio.to_thread(node_types, one)
    checks = (_findings(kind.config(one), directory, image, timeout_s) for kind in kinds)
    found = await asyncio.gather(*checks, return_exceptions=True)
    return [(kind, _or_failed(each)) for kind, each in zip(kinds, found, strict=True)]


def _or_failed(found: Sequence[Finding] | BaseException) -> Sequence[Finding]:
    """Return the findings; a HyperRuntimeError becomes a failed finding."""
    if isinstance(found, HyperRuntimeError):
        step = "try the table's `setup` and options in a job of your own, then correct them"
        return (Finding(subject="node", ok=False, detail=str(found), next_step=step),)
    if isinstance(found, BaseException):
        raise found
    return found


async def _findings(
    config: ClusterConfig, directory: Path, image: str, timeout_s: float
) -> Sequence[Finding]:
    import asyncio

    from hyperruntime.cluster.check import check_node
    from hyperruntime.cluster.cluster import Cluster
    from hyperruntime.cluster.job_directory import JOBS_PREFIX, job_directory
    from hyperruntime.cluster.node_findings import Needs

    with job_directory(directory, JOBS_PREFIX) as jobs:
        async with Cluster(config, jobs) as cluster:
            try:
                node = await asyncio.wait_for(cluster.add_node(), timeout_s)
            except TimeoutError:
                step = "look at the queue, ask for less, or wait longer with --timeout"
                raise ClusterError(f"no node joined within {timeout_s:g} s; {step}") from None
            needs = Needs(image=image, runtime=config.runtime, gpus=config.gpus_per_node)
            return await check_node(node, directory, needs)
