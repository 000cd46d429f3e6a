"""``hyperrun runtimes``: list every driver and what it can do here."""

from __future__ import annotations

from typing import Any

import attrs
import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.machine.engines import EngineView, view_engines
from hyperruntime.cli.tables import json_option, print_json, print_table
from hyperruntime.driver import EngineInfo
from hyperruntime.gpu.devices import load_devices
from hyperruntime.gpu.nvidia import PROGRAM
from hyperruntime.host.process import find_program

_COLUMNS = ("runtime", "usable", "version", "mode", "oci runtime", "storage", "networks", "limits", "gpus")


@click.command(cls=Command, epilog=example("hyperrun runtimes", "hyperrun runtimes --json"))
@json_option
def runtimes(as_json: bool) -> None:
    """List the container engines and what each can do on this machine, in the order that auto tries them."""
    views = view_engines()
    if as_json:
        print_json([_to_json(view) for view in views])
        return
    print_table(_COLUMNS, [_row(view) for view in views])
    for view in views:
        if not view.usable:
            step = f"; {view.next_step}" if view.next_step else ""
            click.echo(f"{view.name}: {view.why}{step}")


def _row(view: EngineView) -> tuple[str, ...]:
    if view.info is None:
        return (view.name, "no", *[""] * (len(_COLUMNS) - 2))
    info = view.info
    return (
        view.name,
        "yes",
        info.version,
        "rootless" if info.rootless else "root",
        info.oci_runtime or "default",
        info.storage,
        ", ".join(info.networks),
        limits_text(view),
        _gpu_text(info),
    )


def _gpu_text(info: EngineInfo) -> str:
    """Return ``yes``, ``no`` (the engine cannot give GPUs), or ``none here`` (this machine has none)."""
    if not info.gpus:
        return "no"
    described = any(device.kind.endswith("/gpu") for device in load_devices().devices.values())
    return "yes" if described or find_program(PROGRAM) is not None else "none here"


def limits_text(view: EngineView) -> str:
    """Return how limits are enforced: one word such as ``cgroup``, or one for each limit if they differ."""
    limits = {} if view.info is None else {name.removesuffix("_bytes"): how for name, how in view.info.limits.items()}
    if len(set(limits.values())) == 1:
        return next(iter(limits.values()))
    return ", ".join(f"{name} {how}" for name, how in limits.items())


def _to_json(view: EngineView) -> dict[str, Any]:
    facts = {} if view.info is None else attrs.asdict(view.info, recurse=False)
    facts.pop("engine", None)
    if "limits" in facts:
        facts["limits"] = dict(facts["limits"])
        facts["refuses"] = sorted(facts["refuses"])
    return {
        "runtime": view.name,
        "package": view.source,
        "usable": view.usable,
        "why_not": view.why,
        "next_step": view.next_step,
        **facts,
    }
