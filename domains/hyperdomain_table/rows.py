"""Read the rows of a table and separate their labels from the inputs."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperdomain_table.definition import Definition
from hyperruntime.errors import SpecError
from hyperruntime.json_values import parse_json
from hyperruntime.units import MIB

_MAX_FIELD_BYTES = 64 * MIB
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_MAX_ID = 120  # an id becomes part of a file's name


@attrs.frozen(kw_only=True)
class Row:
    """One question.

    Attributes:
        inputs: the values that agents see, by column.
        label: the right answer, which agents do not see.
    """

    inputs: Mapping[str, Any]
    label: str


def read_rows(definition: Definition, path: Path) -> dict[str, Row]:
    """Return the rows of a file, by id, in the order of the file.

    Args:
        definition: the definition of the data set.
        path: the file.

    Raises:
        SpecError: the file cannot be read or is empty, or a row lacks a column, repeats an id or has an invalid label.
    """
    rows: dict[str, Row] = {}
    try:
        for number, record in enumerate(_records(path), start=1):
            name, row = _row(definition, record, number, f"{path}, row {number}")
            if name in rows:
                raise SpecError("id", name, f"each id once ({path}, row {number})")
            rows[name] = row
        if not rows:
            raise SpecError("file", str(path), "a table with at least one row")
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError("file", str(path), f"a readable table in UTF-8 ({error})") from error
    return rows


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            csv.field_size_limit(_MAX_FIELD_BYTES)  # for the whole process: the default is too small for papers
            yield from csv.DictReader(file, strict=True)
        else:
            yield from (_json_record(line, path) for line in file if line.strip())


def _json_record(line: str, path: Path) -> Mapping[str, Any]:
    value = parse_json(line)
    if not isinstance(value, dict):
        raise SpecError("file", str(path), "one JSON object on each line")
    return value


def _row(definition: Definition, record: Mapping[str, Any], number: int, where: str) -> tuple[str, Row]:
    if None in record:
        raise SpecError("row", number, f"as many fields as the first line ({where})")
    key = definition.id or ("id" if "id" in record else None)
    shown = definition.inputs or tuple(name for name in record if name not in (key, definition.label))
    for column in (*shown, definition.label, *((key,) if key else ())):
        if record.get(column) is None:
            raise SpecError("column", column, f"a value in every row; there is none in {where}")
    name = _UNSAFE.sub("_", str(record[key])) if key else f"row-{number}"
    if not 0 < len(name) <= _MAX_ID:
        raise SpecError("id", name, f"1 to {_MAX_ID} characters ({where})")
    return name, Row(inputs={column: record[column] for column in shown}, label=_label(definition, record, where))


def _label(definition: Definition, record: Mapping[str, Any], where: str) -> str:
    value = record[definition.label]
    label = str(value).strip() if isinstance(value, (str, int, float)) else ""
    if not label or (definition.ordered and label not in definition.ordered):
        allowed = f"one of {', '.join(definition.ordered)}" if definition.ordered else "a text that is not empty"
        raise SpecError("label", label, f"{allowed} ({where})")
    return label
