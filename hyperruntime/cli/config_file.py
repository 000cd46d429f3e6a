"""The options of a run that are in a file: ``hyperrun.toml`` of an agent, or what ``--config`` names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hyperruntime.cli.command import AGENT_FILE
from hyperruntime.cli.params import COUNTS, LIMITS, NAMES
from hyperruntime.errors import AgentError, unknown_name

_TABLES = ("generate", "gateway")
_NOT_IN_A_FILE = ("config", "help", "json", "resume_from")


def generate_table(path: Path, command: click.Command, name: str = "generate") -> dict[str, Any]:
    """Return the options of a TOML file's table by parameter name.

    Raises:
        AgentError: it is no TOML, or has an option that the command does not.
    """
    known = {opt.removeprefix("--").replace("-", "_"): param for param in command.params for opt in param.opts}
    names = {name: param for name, param in known.items() if name not in _NOT_IN_A_FILE}
    table: dict[str, Any] = {}
    for key, value in _table(path, _read(path), name).items():
        param = names.get(key.replace("-", "_"))
        if param is None or param.name is None:
            options = (text.replace("_", "-") for text in names)
            raise AgentError(f"{path}: [{name}]: {unknown_name('option', key, options)}")
        if param.type is LIMITS:
            table.update(LIMITS.convert(value, param, None))
        else:
            table[param.name] = _listed(param, value)
    return table


def agent_table(path: Path, command: click.Command) -> dict[str, Any]:
    """Return the ``[generate]`` options of an agent repository's file; domains default to ``[agent]``'s.

    Raises:
        AgentError: as for :func:`generate_table`.
    """
    return {"domains": [agent_domains(path.parent)], **generate_table(path, command)}


def config_table(path: Path, command: click.Command) -> dict[str, Any]:
    """Return the options that a configuration file sets; where it has a ``[gateway]``, it is the gateway's too.

    Raises:
        AgentError: as for :func:`generate_table`, or it has another table.
    """
    value = _read(path)
    for name in value:
        if name not in _TABLES:
            raise AgentError(f"{path}: {unknown_name('table', name, _TABLES)}")
    gateway = {"gateway": str(path)} if "gateway" in value else {}
    return {**gateway, **generate_table(path, command)}


def agent_domains(agent: Path) -> tuple[str, ...]:
    """Return the domains that an agent repository's ``hyperrun.toml`` says it is for; none where it has none."""
    path = agent / AGENT_FILE
    names = _table(path, _read(path), "agent").get("domains", ()) if path.is_file() else ()
    return tuple(str(name) for name in names) if isinstance(names, (list, tuple)) else (str(names),)


def use_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Let a file's options be the defaults of the command line; a callback of ``--config``."""
    if value is not None and not ctx.resilient_parsing:
        ctx.default_map = {**(ctx.default_map or {}), **config_table(Path(value), ctx.command), **_said(ctx)}


def use_limits(ctx: click.Context, param: click.Parameter, value: Mapping[str, Any] | None) -> None:
    """Let limits that are named together be the defaults of the single options; a callback of ``--limits``."""
    if value and not ctx.resilient_parsing:
        _said(ctx).update(value)
        ctx.default_map = {**(ctx.default_map or {}), **_said(ctx)}


def _said(ctx: click.Context) -> dict[str, Any]:
    """Return what the command line itself makes a default of, which comes before any file."""
    said: dict[str, Any] = ctx.meta.setdefault("hyperruntime.cli.limits", {})
    return said


def _listed(param: click.Parameter, value: Any) -> Any:  # noqa: ANN401 - any TOML value
    """Return a value as click takes an option that may be repeated: a list of what was said each time."""
    if not isinstance(param, click.Option) or not param.multiple:
        return value
    if isinstance(value, dict):
        return [f"{name}={text}" for name, text in value.items()]
    return [value] if param.type in (NAMES, COUNTS) or not isinstance(value, list) else value


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise AgentError(f"{path} cannot be read as TOML: {error}") from error


def _table(path: Path, value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = value.get(name, {})
    if not isinstance(table, dict):
        raise AgentError(f"{path}: [{name}] must be a table")
    return table
