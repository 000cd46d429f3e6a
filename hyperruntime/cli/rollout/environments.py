"""``hyperrun rollout environments``: list the installed environments."""

from __future__ import annotations

from typing import Any

import click

from hyperruntime.cli.command import Command, example
from hyperruntime.cli.tables import json_option, print_list
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.rollout.loading import describe_environment, known_environments

_COLUMNS = ("environment", "package", "options", "description")


@click.command(
    cls=Command,
    epilog=example("hyperrun rollout environments", "hyperrun rollout environments --json"),
)
@json_option
def environments(as_json: bool) -> None:
    """List the installed environments with the names of their options (--option NAME=VALUE)."""
    views = [_view(name, package) for name, package in known_environments().items()]
    rows = [_row(view) for view in views]
    print_list(views, _COLUMNS, rows, as_json=as_json, none="no environment is installed")


def _view(name: str, package: str) -> dict[str, Any]:
    """Return an environment as JSON values; a broken one has a ``problem``."""
    view: dict[str, Any] = {"environment": name, "package": package, "options": {}, "required": []}
    try:
        description, options, required = describe_environment(name)
    except HyperRuntimeError as error:
        return {**view, "description": "", "problem": str(error)}
    return {
        **view,
        "options": options,
        "required": required,
        "description": description,
        "problem": "",
    }


def _row(view: dict[str, Any]) -> tuple[str, ...]:
    said = f"broken: {view['problem']}" if view["problem"] else view["description"]
    return view["environment"], view["package"], " ".join(view["options"]), said
