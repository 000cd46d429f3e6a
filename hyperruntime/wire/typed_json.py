"""JSON values and attrs classes: read one as the other, and describe the class as JSON Schema.

Both come from the annotations, so the schema accepts what is read. Reading is strict: no unknown
field, no conversion. Source: JSON Schema 2020-12, which OpenAPI 3.1 uses.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.json_values import is_integer, is_number

T = TypeVar("T")

_FIELD = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)
_WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_CHECKS: dict[Any, Callable[[object], bool]] = {
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    int: is_integer,
    float: is_number,
    type(None): lambda value: value is None,
}


def fields_of(kind: type) -> Mapping[str, attrs.Attribute[Any]]:
    """Return the fields of an attrs class by name, with types instead of annotations."""
    return {field.name: field for field in attrs.fields(attrs.resolve_types(kind))}


def read(kind: type[T], value: Any, where: str = "the body") -> T:  # noqa: ANN401 - checked here
    """Return an instance of an attrs class from a JSON object; missing fields have their defaults.

    Args:
        kind: the class.
        value: a JSON value.
        where: its name, for errors.

    Raises:
        SpecError: a field is unknown, missing or of another type, or the class refuses it.
    """
    if not isinstance(value, Mapping):
        raise SpecError(where, value, "a JSON object")
    fields = fields_of(kind)
    if unknown := sorted(set(value) - set(fields)):
        raise SpecError(
            _shown(unknown[0]), value[unknown[0]], f"no such field; known: {', '.join(fields)}"
        )
    missing = [
        name
        for name, field in fields.items()
        if field.default is attrs.NOTHING and name not in value
    ]
    if missing:
        raise SpecError(missing[0], None, "it must be given")
    return kind(**{name: _read(fields[name].type, item, name) for name, item in value.items()})


def _read(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401 - a type, a JSON value
    if _is_union(kind):
        return _read_union(kind, value, where)
    if get_origin(kind) is Literal:
        if value not in get_args(kind) or isinstance(value, bool):
            raise SpecError(where, value, f"one of {', '.join(map(str, get_args(kind)))}")
        return value
    if get_origin(kind) in (tuple, Sequence):
        if not isinstance(value, list):
            raise SpecError(where, value, "a list")
        return _read_list(get_args(kind)[0], value, where)
    if get_origin(kind) is Mapping:
        if not isinstance(value, Mapping):
            raise SpecError(where, value, "an object")
        return {
            name: _read(get_args(kind)[1], item, f"{where}[{_shown(name)}]")
            for name, item in value.items()
        }
    if attrs.has(kind):
        return read(kind, value, where)
    if kind is not Any and not _CHECKS[kind](value):
        raise SpecError(where, value, _WORDS[kind])
    return value


def _shown(name: str) -> str:
    """Return a name of a JSON object, which others chose, for an error: short and printable."""
    return name[:100] if name.isprintable() else ascii(name[:100])


def _read_list(kind: Any, items: list[Any], where: str) -> tuple[Any, ...]:  # noqa: ANN401 - a type
    kinds = get_args(kind) if _is_union(kind) else (kind,)
    checks = [_CHECKS[one] for one in kinds if one in _CHECKS]
    # it may be long
    if len(checks) == len(kinds) and all(any(check(item) for check in checks) for item in items):
        return tuple(items)
    return tuple(_read(kind, item, f"{where}[{index}]") for index, item in enumerate(items))


def _read_union(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    errors = []
    for one in get_args(kind):
        try:
            return _read(one, value, where)
        except SpecError as error:
            errors.append(error.allowed)
    raise SpecError(where, value, " or ".join(errors))


def read_text(kind: type, name: str, text: str) -> Any:  # noqa: ANN401
    """Return the JSON value for the text of a field in a query: ``true``, a number, or the text
    itself.

    Args:
        kind: the attrs class.
        name: the name of a field.
        text: the value as text.
    """
    known = fields_of(kind).get(name)
    kinds = get_args(known.type) or (known.type,) if known is not None else ()
    if bool in kinds and text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        if number in kinds and str not in kinds:
            try:
                return number(text)
            except ValueError:
                continue
    return text


def to_json(value: Any) -> Any:  # noqa: ANN401
    """Return an instance of an attrs class as a JSON object; a field whose value and default are
    None is left out.
    """
    if attrs.has(type(value)):
        fields = fields_of(type(value)).values()
        given = ((field, getattr(value, field.name)) for field in fields)
        return {
            field.name: to_json(item)
            for field, item in given
            if item is not None or field.default is not None
        }
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


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
    if _is_union(kind):
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
        said |= {name: " ".join(words.split()) for name, words in _FIELD.findall(rest)}
    return said


def _is_union(kind: Any) -> bool:  # noqa: ANN401
    return get_origin(kind) in (Union, types.UnionType)
