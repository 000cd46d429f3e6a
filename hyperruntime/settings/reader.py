"""The reader of settings: tables of TOML, YAML and JSON become attrs classes, by their annotations.

Reading is strict: no conversion between texts and numbers. Errors name the field by its path, its
value, and what is allowed. Why one reader, and none of a library:
docs/design/interfaces.md#settings.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.json_values import is_integer, is_number

T = TypeVar("T")

WORDS: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}
_CHECKS: Mapping[Any, Callable[[object], bool]] = {
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    int: is_integer,
    float: is_number,
    type(None): lambda value: value is None,
}
_UNIONS = (Union, types.UnionType)
_MOST_NAME = 100


def read(
    kind: type[T],
    value: Any,  # noqa: ANN401 - checked here
    where: str = "the body",
    *,
    path: str = "",
    strict: bool = True,
) -> T:
    """Return an instance of an attrs class from a table; missing fields have their defaults.

    A part that is an instance of its class already is taken as it is.

    Args:
        kind: the class.
        value: the table: a JSON object, a table of TOML or YAML.
        where: its name, for errors.
        path: what the names of its fields begin with in errors, such as ``profiles.small``, or
            ``FILE: ``.
        strict: whether an unknown field is an error; else it is ignored.

    Raises:
        SpecError: a field is unknown, missing or of another type, or the class refuses it.
    """
    try:
        made: T = _read(kind, value, strict)
    except SpecError as error:
        raise _below(path, error, where) from error.__cause__
    return made


def check_known(table: object, known: Collection[str] | None, path: str) -> None:
    """Check that a value is a table that has only known keys; None allows any.

    Raises:
        SpecError: it is none, or has another key, whose value is not shown: it may be a secret.
    """
    if not isinstance(table, Mapping) or not (
        set(map(type, table)) <= {str} or all(isinstance(key, str) for key in table)
    ):
        raise SpecError(path, table, "a table or JSON object of named values")
    if known is None:
        return
    for key in table:
        if key not in known:
            place = f"{path}.{_shown(key)}".lstrip(".")
            raise SpecError(place, "...", f"a known key; {name_hint(key, known)}")


def is_union(kind: Any) -> bool:  # noqa: ANN401 - a type
    """Return whether a type is a union."""
    return get_origin(kind) in _UNIONS


def _read(kind: Any, value: Any, strict: bool) -> Any:  # noqa: ANN401 - a type, any value
    is_one, form, kinds = _form_of(kind)
    if is_one is not None:
        if not is_one(value):
            raise SpecError("", value, WORDS[kind])
        return value
    if form in _UNIONS:
        return _read_union(kinds, value, strict)
    if form is Literal:
        # True equals 1, and no literal here is a truth value
        if value not in kinds or isinstance(value, bool):
            names = ", ".join(filter(None, map(str, kinds)))
            raise SpecError("", value, f"one of {names}")
    elif form in (tuple, list, Sequence):
        return _read_list(kind, value, strict)
    elif form in (Mapping, dict):
        return _read_mapping(kinds[1], value, strict)
    elif kind is not Any and not isinstance(value, kind):
        return _read_class(kind, value, strict)
    return value


@cache
def _form_of(kind: Any) -> tuple[Callable[[object], bool] | None, Any, tuple[Any, ...]]:  # noqa: ANN401
    """Return the check of a plain type or None, and the origin and the arguments of a type; a
    journal has a million values.
    """
    return _CHECKS.get(kind), get_origin(kind), get_args(kind)


def _read_mapping(kind: Any, value: Any, strict: bool) -> dict[str, Any]:  # noqa: ANN401
    check_known(value, None, "")
    items = value.values()
    if kind is Any or (set(map(type, items)) <= {kind} and (kind is not float or _finite(items))):
        return dict(value)  # in one pass: a journal has many of them
    made: dict[str, Any] = {}
    name = ""
    try:
        for name, item in value.items():
            made[name] = _read(kind, item, strict)
    except SpecError as error:
        raise _below(f"[{_shown(name)}]", error) from error.__cause__
    return made


def _read_union(kinds: tuple[Any, ...], value: Any, strict: bool) -> Any:  # noqa: ANN401
    allowed = []
    # a float is checked below: it may be no number
    if type(value) in kinds and not isinstance(value, float):
        return value
    for one in kinds:
        try:
            return _read(one, value, strict)
        except SpecError as error:
            if error.field:  # of a part of the value, which has the right form
                raise
            allowed.append(error.allowed)
    raise SpecError("", value, " or ".join(allowed))


def _read_list(kind: Any, value: Any, strict: bool) -> Sequence[Any]:  # noqa: ANN401
    _, form, kinds = _form_of(kind)
    several = form is not tuple or kinds[1:] == (...,)
    plain = set(get_args(kinds[0]) if is_union(kinds[0]) else kinds[:1])
    if not isinstance(value, list | tuple | set | frozenset):
        raise SpecError("", value, "a list of texts" if plain == {str} else "a list")
    if not several and len(value) != len(kinds):
        raise SpecError("", value, f"a list of {len(kinds)}")
    found = set(map(type, value))
    if several and found <= plain and (float not in found or _are_finite(value, found)):
        # it may have a million numbers
        return value if form is not tuple and isinstance(value, list) else tuple(value)
    made: list[Any] = []
    try:
        for item in value:
            made.append(_read(kinds[0 if several else len(made)], item, strict))
    except SpecError as error:
        raise _below(f"[{len(made)}]", error) from error.__cause__
    return tuple(made) if form is tuple else made


def _finite(numbers: Iterable[float]) -> bool:
    return all(map(math.isfinite, numbers))


def _are_finite(numbers: Collection[Any], found: set[type]) -> bool:
    return found <= {float, type(None)} and all(map(math.isfinite, filter(None, numbers)))


def _read_class(kind: Any, value: Any, strict: bool) -> Any:  # noqa: ANN401
    fields = fields_of(kind)
    check_known(value, fields if strict else None, "")
    for name in _required(kind):
        if name not in value:
            raise SpecError(name, None, "it must be given")
    try:
        given = {
            name: item
            if type(item := value[name]) in plain
            else _read_field(fields[name], item, strict)
            for name, plain in _plain_of(kind)
            if name in value
        }
        return kind(**given)
    except SpecError as error:
        place = error.field.removeprefix(f"{kind.__name__}.")
        named = re.split(r"[.\[]", place)[0]
        # what has a `repr` of its own may be a secret
        is_shown = named not in fields or fields[named].repr is True
        shown = error.value if is_shown else "..."
        raise SpecError(place, shown, error.allowed) from error.__cause__
    except (TypeError, ValueError, AttributeError) as error:
        # raised by a converter or a check of the class itself
        allowed = f"values of the right types; correct the wrong field ({error})"
        raise SpecError("", "...", allowed) from error


def _read_field(field: attrs.Attribute[Any], value: Any, strict: bool) -> Any:  # noqa: ANN401
    try:
        return _read(field.type, value, strict)
    except SpecError as error:
        allowed = error.allowed
        try:
            if field.validator is not None and not error.field:
                field.validator(None, field, value)
        except SpecError as better:  # the check of the field says more than its type
            allowed = better.allowed
        except (TypeError, ValueError):
            pass
        raise _below(field.name, SpecError(error.field, error.value, allowed)) from error.__cause__


def _below(place: str, error: SpecError, name: str = "") -> SpecError:
    """Return an error whose field is a part of a place; ``name`` stands for an empty path."""
    joined = not place or place.endswith(": ") or error.field.startswith("[")
    field = f"{place}{'' if joined else '.'}{error.field}".rstrip(".: ")
    return SpecError(field or name, error.value, error.allowed)


def _shown(name: object) -> str:
    """Return a name of a table, which others chose, for an error: short and printable."""
    text = str(name)[:_MOST_NAME]
    return text if text.isprintable() else ascii(text)


@cache
def _required(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - a class
    fields = fields_of(kind)
    return tuple(name for name, field in fields.items() if field.default is attrs.NOTHING)


@cache
def _plain_of(kind: Any) -> tuple[tuple[str, frozenset[type]], ...]:  # noqa: ANN401 - a class
    """Return each field of a class with the types whose values need no check but that; a run has
    many records.
    """
    found = []
    for name, field in fields_of(kind).items():
        kinds = get_args(field.type) if is_union(field.type) else (field.type,)
        found.append((name, frozenset(kinds) & {str, bool, int, type(None)}))
    return tuple(found)


@cache
def fields_of(kind: Any) -> Mapping[str, attrs.Attribute[Any]]:  # noqa: ANN401 - a class
    """Return the fields of an attrs class by name, with types instead of annotations."""
    return {field.name: field for field in attrs.fields(attrs.resolve_types(kind))}


def to_json(value: Any, *, nulls: bool = False) -> Any:  # noqa: ANN401
    """Return an instance of an attrs class as a JSON object.

    Args:
        value: the instance, or any value with such parts.
        nulls: whether it has fields whose value and default are None.
    """
    if attrs.has(type(value)):
        fields = attrs.fields(type(value))
        given = ((field, getattr(value, field.name)) for field in fields)
        return {
            field.name: to_json(item, nulls=nulls)
            for field, item in given
            if nulls or item is not None or field.default is not None
        }
    if isinstance(value, Mapping):
        return {name: to_json(item, nulls=nulls) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item, nulls=nulls) for item in value]
    return value
