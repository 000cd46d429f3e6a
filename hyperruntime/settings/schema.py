"""JSON Schema of attrs classes; it allows what the reader of settings reads.

Source: JSON Schema 2020-12, which OpenAPI 3.1 uses.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import attrs

from hyperruntime.settings.reader import fields_of, is_union

_FIELD = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def schema_of(kind: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:  # noqa: ANN401
    """Return the JSON Schema of a type; an attrs class inside becomes a reference to
    ``components/schemas``.

    Args:
        kind: the type; at the top, an attrs class becomes its own schema.
        without: fields that the schema leaves out.
    """
    if not attrs.has(kind):
        return _schema(kind)
    known = {name: field for name, field in fields_of(kind).items() if name not in without}
    said = docs_of(kind)
    made: dict[str, Any] = {
        "type": "object",
        "description": said[""],
        "properties": {
            name: {**_schema(field.type), "description": said[name]}
            for name, field in known.items()
        },
        "additionalProperties": False,
    }
    for name, field in known.items():
        if isinstance(field.default, (str, int, float)):
            made["properties"][name]["default"] = field.default
    if required := [name for name, field in known.items() if field.default is attrs.NOTHING]:
        made["required"] = required
    return made


def _schema(kind: Any) -> dict[str, Any]:  # noqa: ANN401
    if is_union(kind):
        return {"anyOf": [_schema(one) for one in get_args(kind)]}
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _schema(get_args(kind)[0])}
    if get_origin(kind) is Mapping:
        return {"type": "object", "additionalProperties": _schema(get_args(kind)[1])}
    if attrs.has(kind):
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"type": _NAMES[kind]}


def docs_of(kind: type) -> dict[str, str]:
    """Return the descriptions of fields from the docstrings of a class and its bases; under "" that
    of the class.
    """
    said: dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        first, _, rest = inspect.cleandoc(each.__doc__ or "").partition("\nAttributes:\n")
        said[""] = " ".join(first.split())
        said |= {
            name: " ".join(words.split())
            for name, words in _FIELD.findall(rest.partition("\nExample:")[0])
        }
    return said
