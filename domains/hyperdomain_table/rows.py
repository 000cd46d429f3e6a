"""Read the rows of a table and separate their labels from the inputs."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import attrs

from hyperdomain_table.definition import Definition
from hyperruntime.datasets.json_lines import json_lines
from hyperruntime.datasets.left_out import LeftOut
from hyperruntime.errors import SpecError
from hyperruntime.units import MIB

_MAX_FIELD_BYTES = 64 * MIB
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # a byte that could not be decoded
_MAX_ID = 120  # an id becomes part of a file's name


@attrs.frozen(kw_only=True)
class Row:
    """One question.

    Attributes:
        inputs: the values that agents see, by column.
        label: the right answer, which agents do not see.
        hidden: further values that agents do not see, by column.
    """

    inputs: Mapping[str, Any]
    label: str
    hidden: Mapping[str, str]


def read_rows(
    definition: Definition, path: Path, left: LeftOut, prefix: str = ""
) -> dict[str, Row]:
    """Return the rows of a file, by id, in the order of the file.

    Args:
        definition: the definition of the data set.
        path: the file.
        left: takes the rows that lack a column, repeat an id, have an invalid label, or cannot be
            read.
        prefix: put before their names.

    Raises:
        SpecError: the file cannot be read, or has no valid row; a row is invalid, and ``left``
            takes none.
    """
    rows: dict[str, Row] = {}
    of_file = LeftOut(left.unsupported)
    try:
        for number, record in _records(path, of_file, prefix):
            with of_file.reading(f"{prefix}{_name(definition, record, number)}"):
                name, row = _row(definition, record, number, f"{path}, row {number}")
                if name in rows:
                    raise SpecError("id", name, f"each id once ({path}, row {number})")
                rows[name] = row
        of_file.check_any(len(rows), "file", str(path))
        if not rows:
            raise SpecError("file", str(path), "a table with at least one row")
    except (OSError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError("file", str(path), f"a readable table in UTF-8 ({error})") from error
    left.take(of_file)
    return rows


def _records(path: Path, left: LeftOut, prefix: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the records of a file that can be read, with their numbers."""
    if path.suffix == ".csv":
        yield from _csv_records(path, left, prefix)
    else:
        yield from ((line.record, line.value) for line in json_lines(path, left, prefix))


def _csv_records(path: Path, left: LeftOut, prefix: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    # for the whole process: the default is too small for papers
    csv.field_size_limit(_MAX_FIELD_BYTES)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        _check_utf8(reader.fieldnames or (), str(path), "text in UTF-8 in its first line")
        for number in count(1):
            name = f"{prefix}row {number}"
            begin = reader.reader.line_num + 1
            with left.reading(name):
                try:
                    record = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:  # the reader goes on with the next line
                    where = f"{path}, lines {begin} to {reader.reader.line_num}"
                    raise SpecError("row", number, f"a row of CSV ({where}: {error})") from None
                _check_utf8(record.values(), f"{path}, row {number}", "text in UTF-8")
            if name not in left.reasons:
                yield number, record


def _check_utf8(texts: Iterable[Any], where: str, allowed: str) -> None:
    for text in texts:
        if isinstance(text, str) and _NOT_UTF8.search(text):
            raise SpecError(where, text, allowed)


def _name(definition: Definition, record: Mapping[str, Any], number: int) -> str:
    """Return the name of a row in messages: its id, which may be invalid, or its number."""
    key = definition.id or "id"
    return (
        f"row {number}"
        if record.get(key) in (None, "")
        else f"row {number}, id {str(record[key])[:_MAX_ID]}"
    )


def _row(
    definition: Definition, record: Mapping[str, Any], number: int, where: str
) -> tuple[str, Row]:
    if None in record:
        raise SpecError("row", number, f"as many fields as the first line ({where})")
    key = definition.id or ("id" if "id" in record else None)
    shown = definition.inputs or tuple(
        name for name in record if name not in (key, definition.label)
    )
    for column in (*shown, definition.label, *definition.hidden, *((key,) if key else ())):
        if record.get(column) is None:
            raise SpecError("column", column, f"a value in every row; there is none in {where}")
    name = _UNSAFE.sub("_", str(record[key])) if key else f"row-{number}"
    if not 0 < len(name) <= _MAX_ID:
        raise SpecError("id", name, f"1 to {_MAX_ID} characters ({where})")
    question = {"question": definition.question} if definition.question else {}
    return name, Row(
        inputs={
            **question,
            **{definition.names.get(column, column): record[column] for column in shown},
        },
        label=_label(definition, record, where),
        hidden={column: str(record[column]) for column in definition.hidden},
    )


def _label(definition: Definition, record: Mapping[str, Any], where: str) -> str:
    value = record[definition.label]
    label = str(value).strip() if isinstance(value, (str, int, float)) else ""
    alike = [one for one in definition.ordered if one.casefold() == label.casefold()]
    label = alike[0] if len(alike) == 1 else label
    if not label or (definition.ordered and label not in definition.ordered):
        allowed = (
            f"one of {', '.join(definition.ordered)}"
            if definition.ordered
            else "a text that is not empty"
        )
        raise SpecError("label", label, f"{allowed} ({where})")
    return label
