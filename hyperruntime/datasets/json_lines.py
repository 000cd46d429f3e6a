"""Read the objects of a file of JSON lines, of which some lines may be odd."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hyperruntime.datasets.left_out import LeftOut
from hyperruntime.errors import SpecError
from hyperruntime.json_values import parse_json


class JsonLine(NamedTuple):
    """One object of a file of JSON lines.

    Attributes:
        number: number of its line, from 1.
        record: the same, without empty lines.
        value: the object.
    """

    number: int
    record: int
    value: dict[str, Any]


def json_lines(
    path: Path, left: LeftOut, prefix: str = "", *, finite: bool = False
) -> Iterator[JsonLine]:
    """Yield the objects of a file of JSON lines; empty lines are skipped, and a byte order mark at
    the start of a line.

    Args:
        path: the file.
        left: takes the lines that hold anything else than a JSON object in UTF-8, with the name
            ``line NUMBER``.
        prefix: put before these names.
        finite: refuse numbers that are no JSON; see :func:`~.json_values.parse_json`.

    Raises:
        OSError: the file cannot be read.
        SpecError: a line is odd, and ``left`` takes none.
    """
    record = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = raw.removeprefix(codecs.BOM_UTF8).strip()
            if not line:
                continue
            record += 1
            value = None
            with left.reading(f"{prefix}line {number}"):
                value = _object(line, f"{path}:{number}", finite=finite)
            if value is not None:
                yield JsonLine(number, record, value)


def _object(line: bytes, where: str, *, finite: bool) -> dict[str, Any]:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise SpecError(where, line[:80], f"text in UTF-8; its byte {error.start} is not") from None
    try:
        value = parse_json(text, finite=finite)
    except ValueError as error:
        raise SpecError(where, text, f"one JSON object on each line: {error}") from None
    if not isinstance(value, dict):
        raise SpecError(where, text, "one JSON object on each line")
    return value
