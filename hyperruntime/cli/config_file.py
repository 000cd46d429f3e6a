"""Read the options of a run from a file: an agent's ``hyperrun.toml``, or the file of
``--config``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from hyperruntime.cli.command import AGENT_FILE
from hyperruntime.cli.consent import accepted
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.params import COUNTS, LIMITS, NAMES, Parsed
from hyperruntime.errors import AgentError, unknown_name
from hyperruntime.json_values import parse_toml

_TABLES = ("generate", "gateway")
_OF_HOST = {"output_dir_parent"}  # harmless when a run is resumed, where it is not read
_NOT_IN_A_FILE = ("config", "help", "json", "resume_from")


def generate_table(
    path: Path, command: click.Command, name: str = "generate", *, own: bool = False
) -> dict[str, Any]:
    """Return the options in a table of a TOML file, by parameter name.

    Args:
        path: the TOML file.
        command: the command whose options are allowed.
        name: the table.
        own: whether it is an agent's own file, which anybody may have made, and which must be a
            regular file.

    Raises:
        AgentError: the file cannot be read as TOML, or the table is invalid or has an option
            unknown to the command.
        SpecError: ``limits`` is invalid.
    """
    known = {
        opt.removeprefix("--").replace("-", "_"): param
        for param in command.params
        for opt in param.opts
    }
    names = {name: param for name, param in known.items() if name not in _NOT_IN_A_FILE}
    table: dict[str, Any] = {}
    for key, value in _table(path, name, own=own).items():
        param = names.get(key.replace("-", "_"))
        if param is None or param.name is None:
            options = (text.replace("_", "-") for text in names)
            raise AgentError(f"{path}: [{name}]: {unknown_name('option', key, options)}")
        if param.type is LIMITS:
            table.update(LIMITS.convert(value, param, None))
        else:
            table[param.name] = _for_click(param, value, f"{path}: [{name}]: {key}")
    return table


def config_table(path: Path, command: click.Command) -> dict[str, Any]:
    """Return the ``[generate]`` options of a configuration file; with a ``[gateway]``, it is also
    the gateway's file.

    Args:
        path: the TOML file.
        command: the command whose options are allowed.

    Raises:
        AgentError: as for :func:`generate_table`, or the file has an unknown table.
        SpecError: ``limits`` is invalid.
    """
    value = _read(path)
    for name in value:
        if name not in (*_TABLES, "agent", "commands"):  # an agent's own file may be given here too
            raise AgentError(f"{path}: {unknown_name('table', name, _TABLES)}")
    gateway = {"gateway": str(path)} if "gateway" in value else {}
    return {**gateway, **generate_table(path, command)}


def agent_table(path: Path, command: click.Command, runtime: str) -> dict[str, Any]:
    """Return the ``[generate]`` options of an agent's own file, which anybody may have written.

    What names keys, addresses, networks, devices, code or paths of the host is asked for once on a
    terminal.

    Args:
        path: the TOML file.
        command: the command whose options are allowed.
        runtime: the name that the user gave to ``--runtime``.

    Raises:
        AgentError: as for :func:`generate_table`.
        SpecError: ``limits`` is invalid.
        WrongUsageError: the file asks for something of the host, and the user did not accept it.
    """
    from hyperruntime.loop.run_files.options import GenerateOptions
    from hyperruntime.option_fields import option_fields, shown

    table = generate_table(path, command, own=True)
    known = {field.name: field for field in option_fields(GenerateOptions)}
    params = {param.name: param for param in command.params}
    asked = []
    for name, value in table.items():
        field = known.get(name)
        now = value
        if field is not None and callable(field.option.harmless):
            now = params[name].type_cast_value(click.Context(command), value)
        if field is None or (
            now != field.default and (name in _OF_HOST or not field.option.is_harmless(now))
        ):
            asked.append(shown(f"--{name.replace('_', '-')}", value))
    if asked:
        said = f"{str(path.absolute())!r} is a file of the agent and asks for {', '.join(asked)}"
        if not accepted(said):
            words = ("--runtime", runtime, "generate", "--agent", ".", "--config", path.name)
            also = ", which also uses the keys and addresses in its table [gateway]"
            also = also if "gateway" in _read(path, own=True) else ""
            raise WrongUsageError(
                f"{said}; give them yourself: `{shlex.join(('hyperrun', *words))}`{also}"
            )
    return table


def agent_domains(agent: Path) -> tuple[str, ...]:
    """Return the domains that an agent's ``hyperrun.toml`` names; empty without that file.

    Raises:
        AgentError: the file cannot be read as TOML, ``[agent]`` is not a table, or a domain has an
            argument, which may be a path of the host.
    """
    path = agent / AGENT_FILE
    found = _table(path, "agent", own=True).get("domains", ())
    names = (
        tuple(str(name) for name in found) if isinstance(found, (list, tuple)) else (str(found),)
    )
    if named := next((name for name in names if ":" in name), None):
        raise AgentError(
            f"{path}: agent.domains has {named!r}, whose argument may name a file of this "
            "machine; give it yourself with --domains"
        )
    return names


def config_option(
    read: Callable[[Path, click.Command], Mapping[str, Any]], text: str
) -> Callable[[Any], Any]:
    """Return the option ``--config``, which makes the options of a file the defaults of the command
    line.

    Args:
        read: returns the options in a file.
        text: help of the option.
    """

    def use(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
        if value is not None and not ctx.resilient_parsing:
            ctx.default_map = {**(ctx.default_map or {}), **read(value, ctx.command), **_said(ctx)}

    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option(
        "--config",
        metavar="FILE",
        type=kind,
        is_eager=True,
        expose_value=False,
        callback=use,
        help=text,
    )


def use_limits(ctx: click.Context, param: click.Parameter, value: Mapping[str, Any] | None) -> None:
    """Make the limits of ``--limits`` the defaults of the single options; the callback of
    ``--limits``.
    """
    if value and not ctx.resilient_parsing:
        _said(ctx).update(value)
        ctx.default_map = {**(ctx.default_map or {}), **_said(ctx)}


def _said(ctx: click.Context) -> dict[str, Any]:
    """Return the defaults that the command line itself sets; they take precedence over a file."""
    said: dict[str, Any] = ctx.meta.setdefault("hyperruntime.cli.limits", {})
    return said


def _for_click(param: click.Parameter, value: Any, where: str) -> Any:  # noqa: ANN401 - any TOML value
    """Return a value in click's form: for a repeatable option, a list with one item for each use.

    Raises:
        AgentError: the option takes one value, and this is a list or a table, or it is true or
            false.
    """
    if not isinstance(param, click.Option) or not param.multiple:
        if isinstance(value, (list, dict)) and not isinstance(param.type, Parsed):
            raise AgentError(f"{where} = {value!r}: give one value")
        if isinstance(value, bool) and not isinstance(param.type, click.types.BoolParamType):
            raise AgentError(
                f"{where} = {str(value).lower()}: give a value in place of true or false"
            )
        # click makes an integer of any number, 1 of 1.9
        return (
            str(value)
            if isinstance(value, float) and isinstance(param.type, click.types.IntParamType)
            else value
        )
    if isinstance(value, dict):
        return [f"{name}={text}" for name, text in value.items()]
    # these types read a whole list themselves
    return [value] if param.type in (NAMES, COUNTS) or not isinstance(value, list) else value


def _read(path: Path, *, own: bool = False) -> dict[str, Any]:
    """Return the content of a TOML file; that of an agent's own file is empty if there is none."""
    try:
        return parse_toml((_own_file(path) or b"").decode() if own else path.read_text())
    except (OSError, ValueError) as error:
        raise AgentError(
            f"{path} cannot be read as TOML: {error}; correct the file, or give another one"
        ) from error


def _own_file(path: Path) -> bytes | None:
    from hyperruntime.loop.run_files.contract import read_contract_file

    return read_contract_file(path.parent)


def _table(path: Path, name: str, *, own: bool = False) -> Mapping[str, Any]:
    table = _read(path, own=own).get(name, {})
    if not isinstance(table, dict):
        raise AgentError(
            f"{path}: {name} = {table!r} must be a table; write [{name}] on a line, and its "
            "keys below"
        )
    return table
