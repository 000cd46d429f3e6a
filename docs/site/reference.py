"""Rows of the reference, read from the code: errors, keys of files, options, public names and
their modules.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import click

import hyperruntime
from hyperruntime.cli.app import app
from hyperruntime.errors import HyperRuntimeError

ROOT = Path(__file__).parents[2]
_PLUGINS = ("runtime", "domain", "environment", "trainer")
_SOURCES = {"hyperruntime": ROOT, **{f"{kind}s": ROOT / f"{kind}s" for kind in _PLUGINS}}
_NOT_IN_A_FILE = ("config", "help", "json", "resume-from")


@attrs.frozen(kw_only=True)
class Row:
    """A row of a table of the reference.

    Attributes:
        name: name of the thing.
        default: default value, as text; for an error its exit code.
        meaning: what it means.
        module: module that holds it; "" where it does not matter.
    """

    name: str
    default: str
    meaning: str
    module: str = ""


def error_rows() -> list[Row]:
    """Return all errors of the library and of the plug-ins that it ships."""
    classes = [getattr(import_module(module), name) for module, name in sorted(set(_error_names()))]
    rows = [
        Row(
            name=each.__name__,
            default=str(each.exit_code),
            meaning=_first_line(each),
            module=each.__module__,
        )
        for each in classes
    ]
    return sorted(rows, key=lambda row: (row.module != "hyperruntime.errors", row.name))


def _error_names() -> Iterator[tuple[str, str]]:
    """Yield module and name of every subclass of the root error in the sources, whatever imports
    it.
    """
    found = {HyperRuntimeError.__name__: "hyperruntime.errors"}
    classes = list(_classes())
    for _ in range(5):  # more than the deepest chain of subclasses
        found |= {name: module for module, name, bases in classes if bases & found.keys()}
    for name, module in found.items():
        yield module, name


@cache
def _classes() -> tuple[tuple[str, str, frozenset[str]], ...]:
    return tuple(
        (
            ".".join(path.relative_to(base).with_suffix("").parts),
            node.name,
            frozenset(map(_last_word, node.bases)),
        )
        for folder, base in _SOURCES.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not {"agents", "tasks", "inside", "exercises"} & set(path.parts)
        if re.search(r"class \w+\([^)]*Error", text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    )


def _last_word(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _first_line(thing: object) -> str:
    return " ".join((thing.__doc__ or "").partition("\n\n")[0].split())


def key_rows(name: str) -> list[Row]:
    """Return the keys of a file that an attrs class reads; names of tables end with a dot and stand
    elsewhere.

    Args:
        name: ``module:Class``.

    Raises:
        LookupError: the docstring of the class does not describe a field.
    """
    module, _, attribute = name.partition(":")
    cls = getattr(import_module(module), attribute)
    meanings = _described(inspect.getdoc(cls) or "")  # with the same indentation on each Python
    rows = []
    for field in attrs.fields(cls):
        if field.init and field.name not in meanings:
            raise LookupError(f"{name}: the docstring does not describe {field.name}")
        if field.init:
            rows.append(Row(name=field.name, default=_default(field), meaning=meanings[field.name]))
    return rows


def _described(docstring: str) -> dict[str, str]:
    """Return the texts of the section ``Attributes:`` by name."""
    _, _, section = docstring.partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if match := re.match(r" {4}(\w+): (.*)$", line):
            name = match[1]
            found[name] = match[2]
        elif line.startswith(" " * 8) and name:
            found[name] += f" {line.strip()}"
        elif line.strip():
            break
    return found


def _default(field: attrs.Attribute[Any]) -> str:
    value: Any = field.default
    if value is attrs.NOTHING:
        return "required"
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        value = value.factory()
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if attrs.has(type(value)):
        return "its own defaults"
    return (
        repr(value).replace("'", '"')
        if isinstance(value, str)
        else str(list(value) if value == () else value)
    )


def option_rows(words: str) -> list[Row]:
    """Return the options of a command that its table of a configuration file may have.

    Args:
        words: the command below ``hyperrun``, such as ``rollout run``.
    """
    rows = []
    for param in command(*words.split()).params:
        if isinstance(param, click.Option) and not param.hidden:
            name = max(param.opts, key=len).removeprefix("--")
            if name not in _NOT_IN_A_FILE:
                rows.append(
                    Row(
                        name=name,
                        default=_shown(param),
                        meaning=" ".join((param.help or "").split()),
                    )
                )
    return rows


def _shown(param: click.Option) -> str:
    value = param.default
    if param.is_flag:
        return "false"
    if (
        value is None
        or callable(value)
        or isinstance(value, (list, tuple, dict))
        or "Sentinel" in type(value).__name__
    ):
        return ""
    return str(value)


def command(*words: str) -> click.Command:
    """Return a command of ``hyperrun``.

    Raises:
        LookupError: it does not exist.
    """
    found: click.Command = app
    for word in words:
        below = (
            found.get_command(click.Context(found), word)
            if isinstance(found, click.Group)
            else None
        )
        if below is None:
            raise LookupError(f"hyperrun has no command {' '.join(words)!r}")
        found = below
    return found


def commands() -> list[tuple[str, ...]]:
    """Return the words of every command of ``hyperrun``, groups before their commands."""
    return list(_below((), app))


def _below(words: tuple[str, ...], parent: click.Command) -> Iterator[tuple[str, ...]]:
    if isinstance(parent, click.Group):
        for name in parent.list_commands(click.Context(parent)):
            yield (*words, name)
            yield from _below((*words, name), command(*words, name))


def public_names() -> Mapping[str, tuple[str, ...]]:
    """Return the public names of ``hyperruntime`` by the module that holds them, without
    ``hyperruntime.``.
    """
    homes: dict[str, tuple[str, ...]] = {}
    for name in hyperruntime.__all__:
        module = hyperruntime._HOMES[name]  # noqa: SLF001 - the table of the public names
        homes[module] = (*homes.get(module, ()), name)
    return homes
