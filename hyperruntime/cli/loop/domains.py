"""``hyperrun domains``: list what agents can be evaluated on."""

from __future__ import annotations

from typing import Any

import click

from hyperruntime import registry
from hyperruntime.cli.command import Command, example
from hyperruntime.cli.tables import json_option, print_list
from hyperruntime.errors import HyperRuntimeError

_COLUMNS = ("domain", "splits", "image", "gpu", "agent", "description")


@click.command(cls=Command, epilog=example("hyperrun domains", "hyperrun domains --json"))
@json_option
def domains(as_json: bool) -> None:
    """List the installed domains: number of tasks in each split, image, and default agent."""
    views = [_view(name) for name in sorted(registry.plugins(registry.DOMAINS))]
    print_list(
        views,
        _COLUMNS,
        [_row(view) for view in views],
        as_json=as_json,
        none="no domain is installed",
    )


def _view(name: str) -> dict[str, Any]:
    """Return a domain as JSON values; a broken domain has a ``problem``."""
    source = registry.plugins(registry.DOMAINS)[name].source
    try:
        domain = registry.load_domain(name)
        splits = {split.name: len(domain.tasks(split.name)) for split in domain.splits}
        return {
            "domain": name,
            "package": source,
            "description": domain.description,
            "splits": splits,
            "image": domain.image,
            "needs_gpu": domain.needs_gpu,
            "agent": domain.agent,
            "problem": "",
        }
    except Exception as error:  # noqa: BLE001 - a third-party plugin must not hide the others
        problem = (
            str(error)
            if isinstance(error, HyperRuntimeError)
            else f"{type(error).__name__}: {error}"
        )
        unknown = {"description": "", "splits": {}, "image": "", "needs_gpu": False, "agent": ""}
        return {"domain": name, "package": source, **unknown, "problem": problem}


def _row(view: dict[str, Any]) -> tuple[str, ...]:
    if view["problem"]:
        return view["domain"], "", "", "", "", f"broken: {view['problem']}"
    splits = ", ".join(f"{name} {count}" for name, count in view["splits"].items())
    gpu = "yes" if view["needs_gpu"] else "no"
    return view["domain"], splits, view["image"], gpu, view["agent"], view["description"]
