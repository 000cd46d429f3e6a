"""Print tables: with rich on a terminal, as aligned columns elsewhere, or as JSON. Choose their
rows: ``--sort`` and ``--tail``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.errors import unknown_name

if TYPE_CHECKING:
    from rich.table import Table

_MANY_ROWS = 1000  # rich takes about 1 ms per row
_ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LARGE_JSON = 256 * 1024


def printable(text: str) -> str:
    """Return a text that a terminal shows as it is; line breaks and tabs stay.

    Control characters, and those that turn the order of letters around, become escapes.
    Source: Unicode Standard Annex 9, explicit directional characters.
    """
    return _ACTS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def print_json(value: Any) -> None:  # noqa: ANN401 - JSON values, and attrs objects and paths among them
    """Print a value as JSON on standard output; a large value in one line, which is ten times
    faster.

    A number that is not finite becomes null: JSON has none.
    """
    text = json.dumps(value, default=_plain)
    known = json.loads(text, parse_constant=lambda name: None)
    click.echo(json.dumps(known, indent=None if len(text) > _LARGE_JSON else 2))


def _plain(value: Any) -> Any:  # noqa: ANN401 - a value that json does not know
    if attrs.has(type(value)):
        return attrs.asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return os.fspath(value)  # a value of any other type is a mistake of ours: TypeError


def print_list(
    values: Sequence[Any],
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    as_json: bool,
    none: str,
    right: Sequence[str] = (),
) -> None:
    """Print values on standard output: as JSON, or as a table.

    Args:
        values: the values for JSON.
        columns: the headings.
        rows: the rows of the table, with one text per column.
        as_json: whether to print JSON.
        none: the line instead of a table without rows.
        right: headings of the columns to align right.
    """
    if as_json:
        print_json(values)
    elif not rows:
        click.echo(none)
    else:
        print_table(columns, rows, right=right)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
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


def plain_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> list[str]:
    """Return a table as aligned lines; no cell is truncated, so that programs can read it.

    Args:
        columns: the headings.
        rows: each has one text per column.
        right: headings of the columns to align right.
    """
    lines = [
        [column.upper() for column in columns],
        *([cell or "-" for cell in row] for row in rows),
    ]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    sides = [">" if column in right else "<" for column in columns]
    layout = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [layout.format(*line).rstrip() for line in lines]


def _print_rich(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]
) -> None:
    from rich.console import Console

    Console(highlight=False).print(rich_table(columns, rows, right))


def rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> Table:
    """Return a table for a terminal.

    Args:
        columns: the headings.
        rows: each has one text per column.
        right: headings of the columns to align right.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*(Text(cell or "-") for cell in row))
    return table


@attrs.frozen(kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: the heading.
        texts: what the table shows in each row.
        values: numbers that rows are sorted by, None for an empty cell; None if the column has
            texts.
        words: texts that rows are sorted by instead of those that are shown.
        is_right: whether it is aligned to the right; None: if it has numbers.
    """

    name: str
    texts: Sequence[str]
    values: Sequence[float | None] | None = None
    words: Sequence[str] | None = None
    is_right: bool | None = None

    @property
    def is_number(self) -> bool:
        """Whether the column has numbers."""
        return self.values is not None

    def cell(self, row: int) -> float | str | None:
        """Return the value of a row; None if it is empty."""
        return (
            self.values[row] if self.values is not None else (self.words or self.texts)[row] or None
        )


@attrs.frozen(kw_only=True)
class Choice:
    """Which rows of a table to show, and in which order.

    Attributes:
        sort: name of the column to sort by, "-" before it means descending; "" keeps the order.
        tail: how many of the last rows to show; None means all.
    """

    sort: str = ""
    tail: int | None = None

    @property
    def is_made(self) -> bool:
        """Whether anything was chosen."""
        return bool(self.sort or self.tail is not None)

    def rows(self, columns: Sequence[Column]) -> list[int]:
        """Return the numbers of the rows.

        Raises:
            WrongUsageError: the column is unknown.
        """
        rows = list(range(len(columns[0].texts)))
        if self.sort:
            column = _find_column(columns, self.sort.removeprefix("-"))
            full = [row for row in rows if column.cell(row) is not None]
            empty = [row for row in rows if column.cell(row) is None]
            full.sort(key=lambda row: column.cell(row) or 0, reverse=self.sort.startswith("-"))
            rows = empty + full  # the last rows are those that --tail keeps
        return rows if self.tail is None else rows[max(0, len(rows) - self.tail) :]


def print_columns(columns: Sequence[Column], rows: Sequence[int] | None = None) -> None:
    """Print rows of a table on standard output; None means all."""
    names, texts, right = table_of(columns, rows)
    print_table(names, texts, right=right)


def table_of(
    columns: Sequence[Column], rows: Sequence[int] | None = None
) -> tuple[list[str], list[tuple[str, ...]], list[str]]:
    """Return the headings, the texts of the rows, and the headings of the columns to align
    right.
    """
    numbers = range(len(columns[0].texts)) if rows is None else rows
    right = [
        one.name for one in columns if (one.is_number if one.is_right is None else one.is_right)
    ]
    return (
        [one.name for one in columns],
        [tuple(one.texts[row] for one in columns) for row in numbers],
        right,
    )


def _find_column(columns: Sequence[Column], name: str) -> Column:
    """Return the column to sort by, by its name in any case."""
    known = {column.name.casefold(): column for column in columns}
    found = known.get(name.strip().casefold())
    if found is None:
        raise WrongUsageError(
            f"--sort: {unknown_name('column', name, [column.name for column in columns])}"
        )
    return found


def table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--sort`` and ``--tail`` to a command; they become its parameters."""
    for option in (
        click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Show only the last N rows."),
        click.option("--sort", default="", metavar="[-]COLUMN", help="Sort by a column; with -, largest first."),
    ):  # fmt: skip
        function = option(function)
    return function
