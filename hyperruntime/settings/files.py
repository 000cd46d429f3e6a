"""Tables of TOML files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hyperruntime.json_values import parse_toml


def read_table(
    path: Path, name: str, error: Callable[[str], Exception], hint: str
) -> dict[str, Any]:
    """Return a table of a TOML file.

    Args:
        path: the file.
        name: the table.
        error: makes the error from its message.
        hint: what to do if the file has no such table.

    Raises:
        Exception: the error, because the file cannot be read or has no such table.
    """
    try:
        table = parse_toml(path.read_text(encoding="utf-8")).get(name)
    except (OSError, ValueError) as fault:
        why = (isinstance(fault, OSError) and fault.strerror) or fault
        raise error(f"{path} cannot be read as TOML: {why}; correct it") from fault
    if not isinstance(table, dict):
        raise error(f"{path} has no table [{name}]; {hint}")
    return table
