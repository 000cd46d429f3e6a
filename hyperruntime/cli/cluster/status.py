"""``hyperrun cluster status``, ``logs`` and ``down``: show, read and end the open clusters of this
user.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.params import DURATION
from hyperruntime.cli.tables import json_option, print_list
from hyperruntime.errors import ClusterError

if TYPE_CHECKING:
    from hyperruntime.cluster.open_clusters import ClusterState

_COLUMNS = ("cluster", "node", "state", "host", "job", "work", "containers", "reason")
_one_cluster = click.option(
    "--cluster", "name", metavar="NAME", help="The cluster, if more than one is open."
)


@click.command(
    cls=Command, epilog=example("hyperrun cluster status", "hyperrun cluster status --json")
)
@json_option
def status(as_json: bool) -> None:
    """List the nodes of this user's open clusters: of `cluster up`, and of commands with --cluster.

    `work` is the number of tasks that run on a node now. `hyperrun cluster status --json` names
    each node's containers.
    """
    from hyperruntime.cluster.open_clusters import open_clusters

    found = open_clusters()
    rows = [
        (
            state.name,
            node.name,
            node.state,
            node.host,
            node.job,
            str(node.uses),
            str(len(node.containers)),
            node.why,
        )
        for state in found
        for node in state.nodes
    ]
    none = "no nodes" if found else "no open cluster"
    print_list(found, _COLUMNS, rows, as_json=as_json, none=none, right=("work", "containers"))


@click.command(cls=Command, epilog=example("hyperrun cluster logs node-1"))
@click.argument("node")
@_one_cluster
def logs(node: str, name: str | None) -> None:
    """Print NODE's log; if the node never joined, print the output of all jobs of its cluster."""
    state = _find(name)
    if node not in (known := [one.name for one in state.nodes]):
        raise ClusterError(
            f"cluster {state.name} has no node {node!r}; it has {', '.join(known) or 'none yet'}"
        )
    path = Path(state.directory, f"{node}.log")
    outputs = (
        [path] if path.exists() else sorted(Path(state.directory).rglob("submit_scripts/*.std*"))
    )
    for output in outputs:
        with output.open(errors="replace") as text:
            shutil.copyfileobj(text, sys.stdout)


@click.command(cls=Command, epilog=example("hyperrun cluster down"))
@_one_cluster
@click.option(
    "--timeout",
    type=DURATION,
    default="60s",
    show_default=True,
    help="How long to wait for its end.",
)
def down(name: str | None, timeout: float) -> None:
    """End an open cluster as Ctrl-C does: its containers end, its jobs are cancelled, its command
    ends.
    """
    from hyperruntime.host.process import wait_until

    state = _find(name)
    if not state.is_here:
        jobs = ", ".join(node.job for node in state.nodes if node.job and node.state != "lost")
        raise ClusterError(
            f"the head of cluster {state.name} runs on {state.host}; use `hyperrun cluster "
            f"down` there, or cancel its jobs: {jobs or 'none has started'}"
        )
    try:
        state.end()
    except ProcessLookupError:
        return
    if not wait_until(lambda: not state.is_open, timeout, 0.05):
        raise ClusterError(
            f"cluster {state.name} has not ended within {timeout:g} s; wait longer with "
            f"--timeout, or kill its head, process {state.pid}"
        )


def _find(name: str | None) -> ClusterState:
    from hyperruntime.cluster.open_clusters import open_clusters

    found = [state for state in open_clusters() if name is None or state.name == name]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ClusterError(
            "no cluster is open" if name is None else f"no open cluster is named {name!r}"
        )
    raise ClusterError(
        f"{len(found)} clusters are open; name one with --cluster: "
        f"{', '.join(s.name for s in found)}"
    )
