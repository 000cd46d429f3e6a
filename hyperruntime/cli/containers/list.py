"""``hyperrun ps`` and ``hyperrun prune``: list containers with their owners; remove those of dead
owners.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.machine.engines import usable_engines
from hyperruntime.cli.tables import json_option, print_json, print_list
from hyperruntime.errors import PruneError
from hyperruntime.host.owner import LABEL
from hyperruntime.runtime import AUTO, OwnedContainer, Runtime, open_runtime
from hyperruntime.units import format_duration

_COLUMNS = ("name", "image", "state", "owner pid", "owner host", "node", "owner", "run", "age")


@click.command(cls=Command, epilog=example("hyperrun ps", "hyperrun --runtime podman ps --json"))
@json_option
@click.pass_obj
def ps(state: State, as_json: bool) -> None:
    """List this library's containers of all owners, on --runtime or on every usable runtime.

    An owner is alive, dead, or elsewhere: on another machine or in another pid namespace, so that
    its state is unknown here.
    """
    found = [
        _to_json(runtime.name, owned)
        for runtime in _runtimes(state)
        for owned in runtime.containers()
    ]
    rows = [_row(one) for one in found]
    print_list(
        found, _COLUMNS, rows, as_json=as_json, none="no containers", right=("owner pid", "age")
    )


@click.command(cls=Command, epilog=example("hyperrun prune", "hyperrun prune --json"))
@json_option
@click.pass_obj
def prune(state: State, as_json: bool) -> None:
    """Remove the containers and temporary files whose owner on this machine is dead, and nothing
    else.
    """
    removed = {}
    failures = []
    nodes: dict[str, str] = {}
    for runtime in _runtimes(state):
        nodes |= {
            owned.record.id: owned.owner.node for owned in runtime.containers() if owned.owner.node
        }
        try:
            removed[runtime.name] = list(runtime.prune())
        except PruneError as error:
            removed[runtime.name] = list(error.removed)
            failures.append(error)
    if as_json:
        print_json(removed)
    else:
        _print_removed(removed, nodes, none=not failures)
    if failures:
        names = tuple(name for failure in failures for name in failure.removed)
        raise PruneError(names, tuple(reason for failure in failures for reason in failure.reasons))


def _print_removed(removed: dict[str, list[str]], nodes: dict[str, str], *, none: bool) -> None:
    for name, items in removed.items():
        for item in items:
            click.echo(f"removed {item} ({', '.join(filter(None, (name, nodes.get(item))))})")
    if none and not any(removed.values()):
        click.echo(
            "nothing to remove: every container has a live owner, or one whose state is unknown "
            "here"
        )


def _runtimes(state: State) -> Iterator[Runtime]:
    """Open and yield the requested runtime, or each usable one.

    Raises:
        EngineUnavailableError: no runtime is usable.
    """
    names = usable_engines() if state.runtime is None or state.runtime == AUTO else [state.runtime]
    for name in names:
        with open_runtime(name) as runtime:
            yield runtime


def _to_json(runtime: str, owned: OwnedContainer) -> dict[str, Any]:
    record = owned.record
    return {
        "name": record.id,
        "runtime": runtime,
        "image": record.image,
        "state": record.state,
        "owner_pid": owned.owner.pid,
        "owner_host": owned.owner.host,
        "node": owned.owner.node,
        "owner_state": owned.owner_state,
        "run": record.labels.get(f"{LABEL}.run", ""),
        "created": record.created,
        "age_s": round(max(0.0, time.time() - record.created), 3),
    }


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    keys = ("name", "image", "state", "owner_pid", "owner_host", "node", "owner_state", "run")
    return (*(str(row[key]) for key in keys), format_duration(row["age_s"]))
