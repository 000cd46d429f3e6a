"""``hyperrun snapshot``: list, remove, save and compare named snapshots."""

from __future__ import annotations

import time
from contextlib import suppress

import click

from hyperruntime.cli.command import Group, State, example
from hyperruntime.cli.messages import note
from hyperruntime.cli.tables import json_option, print_json, print_list, printable
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.layers.snapshots.snapshot import Snapshot
from hyperruntime.units import format_duration


@click.group(cls=Group, epilog=example("hyperrun snapshot list"))
def snapshot() -> None:
    """List, remove, save and compare named snapshots of containers.

    They are made in Python: `container.snapshot(name="prepared")`.
    """


@snapshot.command("list", epilog=example("hyperrun snapshot list", "hyperrun snapshot list --json"))
@json_option
@click.pass_obj
def list_snapshots(state: State, as_json: bool) -> None:
    """List the named snapshots of this user."""
    found: tuple[Snapshot, ...] = ()
    with state.open_runtime() as runtime, suppress(UnsupportedOptionError):
        found = runtime.snapshots.list()
    now = time.time()
    rows = [(one.name, one.image, format_duration(max(0.0, now - one.created))) for one in found]
    columns = ("name", "image", "age")
    print_list(found, columns, rows, as_json=as_json, none="no named snapshots", right=("age",))


@snapshot.command(epilog=example("hyperrun snapshot remove prepared"))
@click.argument("names", nargs=-1, required=True)
@click.pass_obj
def remove(state: State, names: tuple[str, ...]) -> None:
    """Remove snapshots by name."""
    with state.open_runtime() as runtime:
        for name in names:
            runtime.snapshots.remove(name)
            click.echo(f"removed {name}")


@snapshot.command(epilog=example("hyperrun snapshot save prepared prepared.tar"))
@click.argument("name")
@click.argument("archive")
@click.option("--reference", metavar="IMAGE", default="", help="Default: localhost/NAME:latest.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.pass_obj
def save(state: State, name: str, archive: str, reference: str, force: bool) -> None:
    """Write a snapshot as an image to a file that `hyperrun image load` reads."""
    with state.open_runtime() as runtime:
        runtime.snapshots.find(name).save(archive, reference, force=force)
    note(f"saved {name}")
    click.echo(archive)


@snapshot.command(
    epilog=example("hyperrun snapshot diff prepared", "hyperrun snapshot diff later prepared")
)
@click.argument("name")
@click.argument("since", required=False)
@json_option
@click.pass_obj
def diff(state: State, name: str, since: str | None, as_json: bool) -> None:
    """List what snapshot NAME changed since snapshot SINCE, by default since its image."""
    with state.open_runtime() as runtime:
        find = runtime.snapshots.find
        changes = find(name).diff(None if since is None else find(since))
    if as_json:
        print_json(changes)
    else:
        for change in changes:
            click.echo(printable(str(change)))
