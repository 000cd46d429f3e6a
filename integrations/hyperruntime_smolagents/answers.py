"""Final answers, which the container writes, as values; the memory that one takes is bounded."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any

from smolagents.serialization import SafeSerializer

from hyperruntime.json_values import count_values, parse_json

_MOST_VALUES = 500_000  # each takes up to about 200 bytes
# members of sets and of dictionaries with any keys: their hashes can be made equal
_MOST_HASHED = 10_000
_MOST_PIXELS = 32 * 1024**2
_NUMBERS = frozenset(
    (
        "bool",
        "float16",
        "float32",
        "float64",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
)
_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_HASHED = ("set", "frozenset", "dict_with_complex_keys")


def read_answer(text: str) -> Any:  # noqa: ANN401 - the agent's answer
    """Return the value of a final answer in the framework's JSON.

    Raises:
        Exception: it has another form, or its values would take much more memory than its text.
    """
    if not text.startswith(SafeSerializer.SAFE_PREFIX):
        raise ValueError("it is a pickle; return a value that JSON can express")
    data = text.removeprefix(SafeSerializer.SAFE_PREFIX).encode()
    if count_values(data) > _MOST_VALUES:
        raise ValueError(f"it has more than {_MOST_VALUES} values; return fewer")
    value = parse_json(data)
    _check(value)
    return SafeSerializer.from_json_safe(value)


def _check(value: object) -> None:
    hashed = pixels = 0
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            todo += one.values()
            kind = one.get("__type__")
            if kind == "ndarray" and one["dtype"] not in _NUMBERS:
                raise ValueError(
                    "it has an array whose values are not numbers; return it as a list"
                )
            pixels += _pixels(one) if kind == "PIL.Image" else 0
            hashed += len(one["data"]) if kind in _HASHED else 0
    if hashed > _MOST_HASHED:
        raise ValueError(f"its sets have more than {_MOST_HASHED} members; return a list")
    if pixels > _MOST_PIXELS:
        raise ValueError(f"its images have more than {_MOST_PIXELS} pixels; make them smaller")


def _pixels(image: Mapping[str, Any]) -> int:
    start = base64.b64decode(image["data"])[:24]
    if len(start) < 24 or not start.startswith(_PNG):
        raise ValueError("it has an image that is not a PNG")
    width, height = struct.unpack(">II", start[16:])
    return int(width * height)
