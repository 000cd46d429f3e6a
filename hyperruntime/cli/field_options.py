"""Click options that are derived from the fields of option classes, and the options of a command
line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import click
from click.core import ParameterSource

from hyperruntime.cli import params
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.option_fields import AtLeast, OneOf, OptionField, option_fields
from hyperruntime.units import format_duration, format_size

# How values are written, by ``Option.kind``.
_KINDS: dict[str, Any] = {
    "count": params.COUNT,
    "gpus": params.GPUS,
    "image": params.IMAGE,
    "json": params.JSON_OBJECT,
    "number": float,
}
_REPEATED: dict[str, Any] = {
    "counts": params.COUNTS,
    "env": params.ENV_TEXT,
    "files": click.Path(),
    "mounts": params.MOUNT_PAIR,
    "names": params.NAMES,
    "pairs": params.OPTION_PAIR,
}
_SHOWN = {params.SIZE: format_size, params.DURATION: format_duration}
Decorator = Callable[[Any], Any]


def add_options(decorators: Iterable[Decorator]) -> Decorator:
    """Return a decorator that adds options to a command, in this order."""

    def add(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
        for decorator in reversed(tuple(decorators)):
            function = decorator(function)
        return function

    return add


def all_options(kind: type, before: Mapping[str, tuple[Decorator, ...]]) -> Decorator:
    """Return a decorator that adds the options of an attrs class to a command.

    Args:
        kind: the attrs class.
        before: further options of the command, by the name of the option that follows them in the
            help.
    """
    return add_options(
        one
        for field in option_fields(kind)
        for one in (*before.get(field.name, ()), click_option(field))
    )


def changeable_options(kind: type) -> Decorator:
    """Return a decorator that adds the options that a resumed run may change; those with an own
    help come first.
    """
    found = sorted(changeable(kind).values(), key=lambda field: not field.option.resume_help)
    return add_options(
        click_option(attrs.evolve(field, default=None), field.option.resume_help) for field in found
    )


def changeable(kind: type) -> dict[str, OptionField]:
    """Return the options that a resumed run may change, by name."""
    return {field.name: field for field in option_fields(kind) if field.option.changes}


def click_option(field: OptionField, text: str = "") -> Decorator:
    """Return the click option of a field.

    Args:
        field: the field.
        text: the help; "": the field's.
    """
    option = field.option
    settings: dict[str, Any] = {"help": text or option.help, "metavar": option.metavar}
    if isinstance(field.default, bool):
        settings["is_flag"] = True
    elif option.kind in _REPEATED:
        settings |= {"type": _REPEATED[option.kind], "multiple": True}
    else:
        settings["type"] = kind = _type_of(field)
        if option.written:
            settings |= {"default": option.written, "show_default": True}
        elif field.default is not None:
            shown = _SHOWN[kind](field.default) if kind in _SHOWN else True
            settings |= {"default": field.default, "show_default": shown}
    return click.option(field.flag, **settings)


def _type_of(field: OptionField) -> Any:  # noqa: ANN401 - as click takes it
    check = field.option.check
    if isinstance(check, OneOf) and field.option.metavar is None:
        return click.Choice(check.names)
    if field.path[-1].endswith("_s"):
        return params.DURATION
    if field.path[-1].endswith("_bytes"):
        return params.SIZE
    if isinstance(check, AtLeast):
        return (click.IntRange if check.whole else click.FloatRange)(
            min=check.least, min_open=check.above
        )
    return _KINDS.get(field.option.kind)


def field_values(kind: type, values: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Return the values of the fields of an attrs class, by path.

    Args:
        kind: the attrs class.
        values: the values of the command line, by name.
    """
    return {field.path: field_value(field, values[field.name]) for field in option_fields(kind)}


def field_value(field: OptionField, value: Any) -> Any:  # noqa: ANN401 - of any option
    """Return the value of a field, from the value on the command line; a list that is not given has
    its default.
    """
    if field.option.kind in ("names", "counts"):
        return tuple(item for group in value for item in group) or field.default
    return value


def given(ctx: click.Context, names: Iterable[str], *, in_file: bool = False) -> set[str]:
    """Return the names of the options that the user gave.

    Args:
        ctx: the command line.
        names: the options to look at.
        in_file: whether options of a file count.
    """
    sources = (
        (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
        if in_file
        else (ParameterSource.COMMANDLINE,)
    )
    return {name for name in names if ctx.get_parameter_source(name) in sources}


def given_changes(
    ctx: click.Context, kind: type, names: Iterable[str], ending: str
) -> dict[tuple[str, ...], Any]:
    """Return the given values that a resumed run may change, by path.

    Args:
        ctx: the command line.
        kind: the attrs class of the options.
        names: the options to look at.
        ending: end of the error message.

    Raises:
        WrongUsageError: an option is given that cannot change.
    """
    said = given(ctx, names)
    known = changeable(kind)
    for name in sorted(said.difference(known)):
        raise WrongUsageError(f"--{name.replace('_', '-')} cannot change when {ending}")
    return {known[name].path: ctx.params[name] for name in said}
