"""Choose rows of a table: ``--where``, ``--sort`` and ``--tail``.

A condition is ``COLUMN OPERATOR VALUE`` with one of ``= != < <= > >= ~``; ``~`` means: contains, in
any case. The columns are those of the table. Several conditions must all hold. An empty cell equals
an empty value and nothing else.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import click

from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.params import Parsed
from hyperruntime.cli.tables import print_table
from hyperruntime.errors import SpecError, unknown_name
from hyperruntime.units import parse_duration

_FORM = (
    "COLUMN OPERATOR VALUE with = != < <= > >= or ~ (contains), such as 'score >= 0.5' or "
    "'failure = agent'"
)
_CONDITION = re.compile(r"\s*([^=!<>~]+?)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip


@attrs.frozen(kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: the heading.
        texts: what the table shows in each row.
        values: numbers that are compared and sorted, None for an empty cell; None if the column has
            texts.
        words: texts that are compared and sorted instead of those that are shown.
        parse: returns the value of a text that a user compares with.
        is_right: whether it is aligned to the right; None: if it has numbers.
    """

    name: str
    texts: Sequence[str]
    values: Sequence[float | None] | None = None
    words: Sequence[str] | None = None
    parse: Callable[[str], float] = float
    is_right: bool | None = None

    @property
    def is_number(self) -> bool:
        """Whether numbers are compared."""
        return self.values is not None

    def cell(self, row: int) -> float | str | None:
        """Return the value of a row; None if it is empty."""
        return (
            self.values[row] if self.values is not None else (self.words or self.texts)[row] or None
        )


@attrs.frozen
class Condition:
    """A condition of ``--where``."""

    column: str
    operator: str
    value: str

    def rows(self, columns: Sequence[Column], rows: Iterable[int]) -> list[int]:
        """Return the rows for which it holds.

        Raises:
            WrongUsageError: the column does not exist, the operator needs a value, or the value
                must be a number.
        """
        column = find_column(columns, self.column, "--where")
        if self.operator == "~":
            wanted = self.value.casefold()
            return [row for row in rows if wanted in column.texts[row].casefold()]
        if not self.value:
            if self.operator not in ("=", "!="):
                raise WrongUsageError(
                    f"--where {self.column} {self.operator} needs a value; only = and != may "
                    "have none"
                )
            is_wanted = self.operator == "="
            return [row for row in rows if (column.cell(row) is None) == is_wanted]
        compare, value = _COMPARE[self.operator], self._value(column)
        return [row for row in rows if self._holds(column.cell(row), compare, value)]

    def _holds(
        self, cell: float | str | None, compare: Callable[[Any, Any], bool], value: float | str
    ) -> bool:
        return self.operator == "!=" if cell is None else compare(cell, value)

    def _value(self, column: Column) -> float | str:
        if not column.is_number:
            return self.value
        try:
            return column.parse(self.value)
        except ValueError:
            raise WrongUsageError(
                f"--where {self.column} {self.operator} {self.value!r}: column {column.name!r} "
                "has numbers; give one"
            ) from None


def parse_condition(value: Any, option: str) -> Condition:  # noqa: ANN401 - from the command line
    """Return the condition in a text.

    Args:
        value: the text.
        option: name of the option, for the error message.

    Raises:
        SpecError: the text is not a condition.
    """
    found = _CONDITION.fullmatch(str(value))
    if found is None:
        raise SpecError(option, value, _FORM)
    text = found[3]
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return Condition(found[1], found[2], text)


@attrs.frozen(kw_only=True)
class Choice:
    """Which rows of a table to show, and in which order.

    Attributes:
        where: conditions, which must all hold.
        sort: name of the column to sort by, "-" before it means descending; "" keeps the order.
        tail: how many of the last rows to show; None means all.
    """

    where: tuple[Condition, ...] = ()
    sort: str = ""
    tail: int | None = None

    @property
    def is_made(self) -> bool:
        """Whether anything was chosen."""
        return bool(self.where or self.sort or self.tail is not None)

    def rows(self, columns: Sequence[Column]) -> list[int]:
        """Return the numbers of the rows.

        Raises:
            WrongUsageError: a column is unknown, or a value does not fit it.
        """
        rows = list(range(len(columns[0].texts)))
        for condition in self.where:
            rows = condition.rows(columns, rows)
        if self.sort:
            column = find_column(columns, self.sort.removeprefix("-"), "--sort")
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


def find_column(columns: Sequence[Column], name: str, option: str) -> Column:
    """Return a column by its name, in any case.

    Raises:
        WrongUsageError: no column has this name.
    """
    known = {column.name.casefold(): column for column in columns}
    found = known.get(name.strip().casefold())
    if found is None:
        raise WrongUsageError(
            f"{option}: {unknown_name('column', name, [column.name for column in columns])}"
        )
    return found


def duration_seconds(text: str) -> float:
    """Return the seconds of a duration, for :attr:`Column.parse`."""
    return parse_duration(text)


def table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--where``, ``--sort`` and ``--tail`` to a command; they become its parameters."""
    where = Parsed("condition", parse_condition)
    for option in (
        click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Show only the last N rows."),
        click.option("--sort", default="", metavar="[-]COLUMN", help="Sort by a column; with -, largest first."),
        click.option("--where", type=where, multiple=True, metavar="CONDITION",
                     help="Show rows such as 'score >= 0.5' or 'failure ~ time'; may be repeated."),
    ):  # fmt: skip
        function = option(function)
    return function
