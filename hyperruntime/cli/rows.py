"""Choose rows of a table: ``--sort`` and ``--tail``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import click

from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.tables import print_table
from hyperruntime.errors import unknown_name


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
