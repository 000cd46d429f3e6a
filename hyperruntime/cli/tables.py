"""Print tables: with rich on a terminal, as aligned columns elsewhere, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

_MANY_ROWS = 1000  # rich takes about 1 ms per row
_LARGE_JSON = 256 * 1024


def json_option(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add ``--json`` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(function)


def print_json(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Print a value as JSON on standard output; a large value in one line, which is ten times faster."""
    text = json.dumps(value, default=str)
    click.echo(text if len(text) > _LARGE_JSON else json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print a table on standard output.

    Args:
        columns: the headings.
        rows: each has one text per column.
        right: headings of the columns to align right.
    """
    if sys.stdout.isatty() and len(rows) <= _MANY_ROWS:
        _print_rich(columns, rows, right)
    else:
        click.echo("\n".join(plain_lines(columns, rows, right)))


def plain_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Return a table as aligned lines; no cell is truncated, so that programs can read it.

    Args:
        columns: the headings.
        rows: each has one text per column.
        right: headings of the columns to align right.
    """
    lines = [[column.upper() for column in columns], *([cell or "-" for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return ["  ".join(_aligned(line, columns, widths, right)).rstrip() for line in lines]


def _aligned(line: Sequence[str], columns: Sequence[str], widths: Sequence[int], right: Sequence[str]) -> list[str]:
    return [
        cell.rjust(width) if column in right else cell.ljust(width)
        for cell, column, width in zip(line, columns, widths, strict=True)
    ]


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*(Text(cell or "-") for cell in row))
    Console(highlight=False).print(table)
