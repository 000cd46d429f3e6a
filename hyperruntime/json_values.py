"""Read JSON, TOML and numbers that others wrote. Text that nests too deeply is invalid, not a crash."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

T = TypeVar("T")


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text.

    Args:
        text: the JSON.
        finite: refuse NaN, Infinity and numbers that are too large for a float, such as 1e999: Python reads them, but
            cannot write them as JSON again.

    Raises:
        ValueError: the text is not JSON, or nests too deeply.
    """
    if finite:
        return _parse(lambda: json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float))
    return _parse(lambda: json.loads(text))


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text.

    Raises:
        ValueError: the text is not TOML, or nests too deeply.
    """
    return _parse(lambda: tomllib.loads(text))


def _parse(read: Callable[[], T]) -> T:
    try:
        return read()
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:20]} is too large for a number")
    return value


def json_object(text: str | bytes | None) -> dict[str, Any] | None:
    """Return the JSON object that a text holds, or None if it holds anything else."""
    try:
        value = parse_json(text or "")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def json_object_of_file(path: Path) -> dict[str, Any] | None:
    """Return the JSON object that a file holds, or None if it cannot be read or holds anything else."""
    try:
        return json_object(path.read_bytes())
    except OSError:
        return None


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
