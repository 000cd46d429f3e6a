"""Read JSON and numbers that others wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypeGuard


def json_object(text: str | bytes | None) -> dict[str, Any] | None:
    """Return the JSON object that a text holds, or None if it holds anything else."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
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
