"""Remove the labels from tables that agents see, and add them again to score answers.

A table is a CSV file with a header, as ``csv`` and pandas write it: fields may contain quotes and
line breaks. Only the answers are taken from the table of an agent's container; the rows, their
order and their labels come from the dataset.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from pathlib import Path

import attrs

from hyperruntime.errors import AgentError
from hyperruntime.loop.generation.publish import link_or_copy, special_entries
from hyperruntime.storage.run_files import is_run_directory, is_run_file, read_run_file

PREDICTION = "prediction"
_MAX_FIELD_CHARS = 1 << 30
_SPECIAL = re.compile('[,"\\r\\n]')


@attrs.frozen(kw_only=True)
class Table:
    """A CSV file.

    Attributes:
        columns: the header.
        rows: the rows; each has as many fields as the header.
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
        table: the requested rows of the dataset, with the answers; a missing answer is empty.
        ids: ids of these rows.
        answers: answers to these rows; None if an answer is missing.
        ignored: number of rows in the agent's table that match no requested row.
    """

    table: bytes
    ids: tuple[str, ...]
    answers: tuple[str | None, ...]
    ignored: int


def parse_table(data: bytes, name: str) -> Table:
    """Return a CSV file's content; invalid UTF-8 is replaced.

    Args:
        data: content of the file.
        name: name of the file in error messages.

    Raises:
        AgentError: the CSV is invalid, has no header or a duplicate column, or a row has a wrong
            number of fields.
    """
    csv.field_size_limit(_MAX_FIELD_CHARS)
    text = data.decode("utf-8-sig", errors="replace")
    try:
        lines = [
            tuple(line) for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line
        ]
    except csv.Error as error:
        raise AgentError(f"{name} is not a valid CSV table: {error}") from error
    if not lines or len(set(lines[0])) != len(lines[0]):
        raise AgentError(
            f"{name} is not a valid CSV table: the header is missing or has a duplicate column"
        )
    for number, line in enumerate(lines[1:], 1):
        if len(line) != len(lines[0]):
            raise AgentError(
                f"{name}: row {number} has {len(line)} fields, but the header has {len(lines[0])}"
            )
    return Table(columns=lines[0], rows=tuple(lines[1:]))


def format_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    """Return a table as CSV; a lone carriage return is quoted, because readers treat it as a line
    end.
    """
    lines = (",".join(map(_quoted, row)) or '""' for row in (columns, *rows))
    return "".join(line + "\n" for line in lines).encode("utf-8", "replace")


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if _SPECIAL.search(field) else field


def blank(data: bytes, columns: Sequence[str], name: str) -> bytes:
    """Return a table with these columns empty; the same bytes if it has none of them.

    Args:
        data: content of the table.
        columns: names of the columns to empty.
        name: name of the table in error messages.

    Raises:
        AgentError: the table is invalid, so its labels cannot be found.
    """
    table = parse_table(data, name)
    at = {table.columns.index(column) for column in columns if column in table.columns}
    if not at:
        return data
    return format_table(
        table.columns,
        [["" if place in at else field for place, field in enumerate(row)] for row in table.rows],
    )


def copy_without_labels(source: Path, target: Path, columns: Sequence[str]) -> None:
    """Copy the directory of an evaluation for agents, without the labels of its tables; do nothing
    if it is missing.

    Args:
        source: directory of the evaluation.
        target: directory that agents see.
        columns: names of the columns to empty.

    Raises:
        OSError: a file cannot be read or written.
    """
    if not is_run_directory(source, below=source.parent.parent):
        return  # nothing was evaluated
    shutil.copytree(source, target, copy_function=link_or_copy, ignore=_left_out)
    for path in sorted(path for path in source.rglob("*.csv") if is_run_file(path, below=source)):
        try:
            data = blank(read_run_file(path, below=source), columns, path.name)
        except AgentError:
            continue
        (target / path.relative_to(source)).write_bytes(data)


def _left_out(folder: str, names: Sequence[str]) -> list[str]:
    """Return the tables, and what is neither a regular file nor a directory."""
    tables = [
        name
        for name in names
        if name.endswith(".csv") and os.path.isfile(os.path.join(folder, name))
    ]
    return [*tables, *special_entries(folder, names)]


def relabel(dataset: bytes, said: bytes, id_column: str, count: int | None) -> Labelled:
    """Return the answers of an agent's table with the labels of the dataset.

    Args:
        dataset: table with labels.
        said: table that the agent's container wrote; only the columns ``id_column`` and
            ``prediction`` are read.
        id_column: column that identifies a row.
        count: number of the dataset's first rows that were requested; None for all.

    Raises:
        AgentError: a table is invalid or lacks a column.
    """
    known = parse_table(dataset, "the dataset")
    answers = parse_table(said, "predictions.csv")
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
    lines = [
        [*(row[place] for place in places), answer or ""]
        for row, answer in zip(rows, given, strict=True)
    ]
    return Labelled(
        table=format_table([*columns, PREDICTION], lines), ids=ids, answers=given, ignored=ignored
    )


def _match(
    ids: Sequence[str], said: Sequence[str], predictions: Sequence[str]
) -> tuple[tuple[str | None, ...], int]:
    """Return an answer or None for each id, and the number of unused answers; duplicate ids take
    answers in order.
    """
    waiting: defaultdict[str, deque[str]] = defaultdict(deque)
    keys = _keys(ids)
    for name, prediction in zip(said, predictions, strict=True):
        waiting[keys.get(name) or keys.get(_number(name), name)].append(prediction)
    given = tuple((waiting[name].popleft() or None) if waiting[name] else None for name in ids)
    return given, sum(len(rest) for rest in waiting.values())


def _keys(ids: Sequence[str]) -> dict[str, str]:
    """Map each id, and its value as a number if that is unique, to the id: pandas turns 007 into
    7.
    """
    unique = dict.fromkeys(ids)
    numbers = Counter(number for name in unique if (number := _number(name)))
    keys = {number: name for name in unique if numbers.get(number := _number(name)) == 1}
    return {**keys, **{name: name for name in unique}}


def _number(text: str) -> str:
    try:
        return f"number {float(text)!r}"
    except ValueError:
        return ""
