"""Read JSON, TOML, YAML and numbers that others wrote; count the values of a JSON text before it is
parsed.

Text that nests too deeply is invalid, not a crash.
"""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Callable
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

T = TypeVar("T")

_BEFORE_A_VALUE = b",:[{"
_SHORT = 16
_MOST_YAML_VALUES = 100_000


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text.

    Args:
        text: the JSON.
        finite: refuse NaN, Infinity and numbers that are too large for a float, such as 1e999:
            Python reads them, but cannot write them as JSON again.

    Raises:
        ValueError: the text is not JSON, or nests too deeply.
    """
    if not finite:
        return _parse(lambda: json.loads(text))
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return _parse(lambda: _FINITE.decode(text))


def parse_json_slowly(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a large JSON text, for a thread: other threads run meanwhile.

    :func:`parse_json` is ten times faster, but stops all threads until it has read the text.

    Raises:
        ValueError: the text is not JSON, or nests too deeply.
    """
    decoder: Any = json.JSONDecoder()
    decoder.parse_array = JSONArray
    decoder.parse_object = JSONObject
    decoder.scan_once = py_make_scanner(decoder)
    return _parse(lambda: decoder.decode(text))


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text.

    Raises:
        ValueError: the text is not TOML, or nests too deeply.
    """
    return _parse(lambda: tomllib.loads(text))


def parse_yaml(text: str | bytes) -> Any:  # noqa: ANN401 - any YAML value
    """Return the value of a YAML text; only plain values, no objects of Python.

    Raises:
        ValueError: the text is not YAML, nests too deeply, or has too many values. Those of an
            alias count each time: ten lines that name each other can stand for billions of values.
    """
    import yaml

    def read() -> Any:  # noqa: ANN401
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)  # in C: many times faster
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count_nodes(node, {})
            return loader.construct_document(node)
        finally:
            loader.dispose()

    try:
        return _parse(read)
    # PyYAML's own for odd tags and keys
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def yaml_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the lines of the keys of a YAML text that :func:`parse_yaml` has read, each by the
    names of the keys above it and its own.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        found: dict[tuple[str, ...], int] = {}
        left: list[tuple[tuple[str, ...], Any]] = [((), loader.get_single_node())]
        while left and len(found) < _MOST_YAML_VALUES:
            path, node = left.pop()
            for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
                place = (*path, str(key.value))
                found.setdefault(place, key.start_mark.line + 1)
                left.append((place, value))
        return found
    finally:
        loader.dispose()


def _count_nodes(node: Any, known: dict[int, int]) -> int:  # noqa: ANN401 - a node of PyYAML
    """Return the number of values of a YAML node; ``known`` has those of other nodes, and 0 while
    one is counted.
    """
    if (count := known.get(id(node))) is None:
        known[id(node)] = 0
        inner = node.value if isinstance(node.value, list) else ()
        parts = (part for one in inner for part in (one if isinstance(one, tuple) else (one,)))
        count = known[id(node)] = 1 + sum(_count_nodes(part, known) for part in parts)
    if not count:
        raise ValueError("a value of it is a part of itself")
    if count > _MOST_YAML_VALUES:
        raise ValueError(f"it has more than {_MOST_YAML_VALUES} values")
    return count


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


_FINITE = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite_float)


def json_object(text: str | bytes | None) -> dict[str, Any] | None:
    """Return the JSON object that a text holds, or None if it holds anything else."""
    try:
        value = parse_json(text or "")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def json_object_of_file(path: Path) -> dict[str, Any] | None:
    """Return the JSON object that a file holds, or None if it cannot be read or holds anything
    else.
    """
    try:
        return json_object(path.read_bytes())
    except OSError:
        return None


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number; True and False are not."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )


class ValueCounter:
    """Counts the values of a JSON text that arrives in pieces: numbers, texts, names of members,
    lists and objects.

    It is cheap; a parsed value takes 30 times its bytes.

    Characters inside strings do not count, unless the text has very many strings. For malformed
    JSON the count is right up to the error, where a parser stops.

    Attributes:
        values: the count so far.
        outside: bytes that were counted as outside of strings.
    """

    def __init__(self) -> None:
        """Start a text."""
        self.values = 1
        self.outside = 0
        self._inside = False
        self._rest = b""

    def feed(self, piece: bytes) -> int:
        """Count the values of the next piece; return the count so far."""
        piece = self._rest + piece
        odd = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        self._rest = piece[len(piece) - odd :]
        if b"\\" in piece:
            piece = piece[: len(piece) - odd].replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes = piece.count(b'"')
        outside = piece
        if quotes * _SHORT < len(piece):  # else the strings are short, and splitting takes long
            outside = b"".join(piece.split(b'"')[1 if self._inside else 0 :: 2])
        self._inside ^= quotes % 2 == 1
        self.outside += len(outside)
        self.values += len(outside) - len(outside.translate(None, _BEFORE_A_VALUE))
        return self.values


def count_values(data: bytes) -> int:
    """Return the number of values in a JSON text."""
    return ValueCounter().feed(data)
