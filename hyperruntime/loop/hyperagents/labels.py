"""Take the labels out of tables that agents see, and put them back where answers are judged.

A table is a CSV file with a header, as ``csv`` and pandas write it: any field may hold quotes and line ends. What an
agent's container wrote is believed in nothing but the answers themselves: which rows there are, in which order and with
which labels, is the dataset's word.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict, deque
from collections.abc import Sequence

import attrs

from hyperruntime.errors import AgentError

PREDICTION = "prediction"
_MAX_FIELD_CHARS = 1 << 30
_SPECIAL = re.compile('[,"\\r\\n]')


@attrs.frozen(kw_only=True)
class Table:
    """A CSV file.

    Attributes:
        columns: the header.
        rows: as many fields each as the header has.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> tuple[str, ...]:
        """Return the fields of a column."""
        at = self.columns.index(name)
        return tuple(row[at] for row in self.rows)


@attrs.frozen(kw_only=True)
class Labelled:
    """Answers with their labels.

    Attributes:
        table: the first rows of the dataset, with the answers; an answer that is missing is empty.
        ids: of these rows.
        answers: to these rows; None where there is none.
        ignored: how many rows of the agent's file were to nothing that was asked.
    """

    table: bytes
    ids: tuple[str, ...]
    answers: tuple[str | None, ...]
    ignored: int


def parse_table(data: bytes, name: str) -> Table:
    """Return a CSV file's content; bytes that are no UTF-8 are replaced.

    Raises:
        AgentError: it has no header, a column twice, or a row that has not as many fields as the header.
    """
    csv.field_size_limit(_MAX_FIELD_CHARS)
    text = data.decode("utf-8-sig", errors="replace")
    try:
        lines = [tuple(line) for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
    except csv.Error as error:
        raise AgentError(f"{name} is no CSV table: {error}") from error
    if not lines or len(set(lines[0])) != len(lines[0]):
        raise AgentError(f"{name} is no CSV table: it has no header, or one that names a column twice")
    for number, line in enumerate(lines[1:], 1):
        if len(line) != len(lines[0]):
            raise AgentError(f"{name}: row {number} has {len(line)} fields, and the header has {len(lines[0])}")
    return Table(columns=lines[0], rows=tuple(lines[1:]))


def format_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    """Return a table as CSV; unlike ``csv``, a lone carriage return is quoted, which readers take for a line's end."""
    lines = (",".join(map(_quoted, row)) or '""' for row in (columns, *rows))
    return "".join(line + "\n" for line in lines).encode("utf-8", "replace")


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if _SPECIAL.search(field) else field


def blank(data: bytes, columns: Sequence[str], name: str) -> bytes:
    """Return a table with these columns empty; the same bytes where it has none of them.

    Raises:
        AgentError: it is no table, so that nobody knows where its labels are.
    """
    table = parse_table(data, name)
    at = {table.columns.index(column) for column in columns if column in table.columns}
    if not at:
        return data
    return format_table(
        table.columns, [["" if place in at else field for place, field in enumerate(row)] for row in table.rows]
    )


def relabel(dataset: bytes, said: bytes, id_column: str, count: int | None) -> Labelled:
    """Return the answers of an agent's table beside the labels of the dataset.

    Args:
        dataset: with labels. said: what the agent's container wrote; its columns ``id_column`` and ``prediction``
            are read. id_column: names a row. count: how many of the dataset's first rows were asked, None for all.

    Raises:
        AgentError: one of them is no table, or lacks a column.
    """
    known, answers = parse_table(dataset, "the dataset"), parse_table(said, "predictions.csv")
    for table, column, name in (
        (known, id_column, "the dataset"),
        (answers, id_column, "predictions.csv"),
        (answers, PREDICTION, "predictions.csv"),
    ):
        if column not in table.columns:
            raise AgentError(f"{name} has no column {column!r}")
    rows = known.rows if count is None else known.rows[:count]
    ids = known.column(id_column)[: len(rows)]
    given, ignored = _match(ids, answers.column(id_column), answers.column(PREDICTION))
    columns = [column for column in known.columns if column != PREDICTION]
    places = [known.columns.index(column) for column in columns]
    lines = [[*(row[place] for place in places), answer or ""] for row, answer in zip(rows, given, strict=True)]
    return Labelled(table=format_table([*columns, PREDICTION], lines), ids=ids, answers=given, ignored=ignored)


def _match(ids: Sequence[str], said: Sequence[str], predictions: Sequence[str]) -> tuple[tuple[str | None, ...], int]:
    """Return an answer for each id, and how many are to none; an id that is there twice takes two, in order."""
    waiting: defaultdict[str, deque[str]] = defaultdict(deque)
    keys = _keys(ids)
    for name, prediction in zip(said, predictions, strict=True):
        waiting[keys.get(name) or keys.get(_number(name), name)].append(prediction)
    given = tuple((waiting[name].popleft() or None) if waiting[name] else None for name in ids)
    return given, sum(len(rest) for rest in waiting.values())


def _keys(ids: Sequence[str]) -> dict[str, str]:
    """Return each id by itself, and by the number it is where no other id is the same: pandas turns 007 into 7."""
    unique = dict.fromkeys(ids)
    numbers = Counter(number for name in unique if (number := _number(name)))
    keys = {number: name for name in unique if numbers.get(number := _number(name)) == 1}
    return {**keys, **{name: name for name in unique}}


def _number(text: str) -> str:
    try:
        return f"number {float(text)!r}"
    except ValueError:
        return ""
