"""The reader of settings: tables of TOML, YAML and JSON become attrs classes, by their annotations.

Reading is strict: no conversion between texts and numbers. Errors name the field by its path, its
value, and what is allowed. Why one reader, and none of a library:
docs/design/interfaces.md#settings.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import cycle
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

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
_PLAIN = frozenset({str, bool, int, type(None)})  # what has such a type needs no other check
_UNIONS = (Union, types.UnionType)
_NONE = attrs.NOTHING
_Reader = Callable[[Any, bool], Any]  # of a value; whether unknown fields are errors
# a field, its name, the plain types of its values, and what reads others
_Part = tuple["attrs.Attribute[Any]", str, frozenset[type], _Reader]
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
        made: T = _reader_of(cast("Any", kind))(value, strict)
    except SpecError as error:
        raise _below(path, error, where) from error.__cause__
    return made


def check_known(table: object, known: Collection[str] | None, path: str) -> None:
    """Check that a value is a table that has only known keys; None allows any.

    Raises:
        SpecError: it is none, or has another key, whose value is not shown: it may be a secret.
    """
    if not isinstance(table, dict | Mapping) or not (  # a dict is found faster
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


@cache
def _reader_of(kind: Any) -> _Reader:  # noqa: ANN401 - a type
    """Return the function that reads values of a type: a journal has a million values, and the
    type is looked up once.
    """
    form = get_origin(kind)
    kinds = get_args(kind)
    if kind in _CHECKS:
        return _plain_reader(kind)
    if form in _UNIONS:
        return _union_reader(kinds)
    if form is Literal:
        return _literal_reader(kinds)
    if form in (tuple, list, Sequence):
        return _list_reader(form, kinds)
    if form in (Mapping, dict):
        return _mapping_reader(kinds[1])
    if kind is Any:
        return lambda value, strict: value
    return _class_reader(kind)


def _plain_reader(kind: Any) -> _Reader:  # noqa: ANN401
    check = _CHECKS[kind]
    allowed = WORDS[kind]

    def read_plain(value: Any, strict: bool) -> Any:  # noqa: ANN401
        if not check(value):
            raise SpecError("", value, allowed)
        return value

    return read_plain


def _literal_reader(kinds: tuple[Any, ...]) -> _Reader:
    names = ", ".join(filter(None, map(str, kinds)))

    def read_literal(value: Any, strict: bool) -> Any:  # noqa: ANN401
        # True equals 1, and no literal here is a truth value
        if value not in kinds or isinstance(value, bool):
            raise SpecError("", value, f"one of {names}")
        return value

    return read_literal


def _mapping_reader(kind: Any) -> _Reader:  # noqa: ANN401
    read_item = _reader_of(kind)

    def read_mapping(value: Any, strict: bool) -> dict[str, Any]:  # noqa: ANN401
        check_known(value, None, "")
        if kind is Any or (
            set(map(type, items := value.values())) <= {kind}
            and (kind is not float or math.isfinite(sum(items)))
        ):
            return dict(value)  # in one pass: a journal has many of them
        made: dict[str, Any] = {}
        name = ""
        try:
            for name, item in value.items():
                made[name] = read_item(item, strict)
        except SpecError as error:
            raise _below(f"[{_shown(name)}]", error) from error.__cause__
        return made

    return read_mapping


def _union_reader(kinds: tuple[Any, ...]) -> _Reader:
    readers = tuple(map(_reader_of, kinds))
    # a float is checked by its reader: it may be no number
    plain = frozenset(kinds) - {float}

    def read_union(value: Any, strict: bool) -> Any:  # noqa: ANN401
        if type(value) in plain:
            return value
        allowed = []
        for read_one in readers:
            try:
                return read_one(value, strict)
            except SpecError as error:
                if error.field:  # of a part of the value, which has the right form
                    raise
                allowed.append(error.allowed)
        raise SpecError("", value, " or ".join(allowed))

    return read_union


def _list_reader(form: Any, kinds: tuple[Any, ...]) -> _Reader:  # noqa: ANN401
    several = form is not tuple or kinds[1:] == (...,)
    plain = set(get_args(kinds[0]) if is_union(kinds[0]) else kinds[:1])
    readers = tuple(map(_reader_of, kinds[:1] if several else kinds))

    def read_list(value: Any, strict: bool) -> Sequence[Any]:  # noqa: ANN401
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
            for item, read_item in zip(value, cycle(readers), strict=False):
                made.append(read_item(item, strict))
        except SpecError as error:
            raise _below(f"[{len(made)}]", error) from error.__cause__
        return tuple(made) if form is tuple else made

    return read_list


def _are_finite(numbers: Collection[Any], found: set[type]) -> bool:
    return found <= {float, type(None)} and math.isfinite(sum(filter(None, numbers)))


def _class_reader(kind: Any) -> _Reader:  # noqa: ANN401 - a class
    parts: tuple[_Part, ...] = ()
    required: tuple[str, ...] = ()

    def read_class(value: Any, strict: bool) -> Any:  # noqa: ANN401
        nonlocal parts, required
        if isinstance(value, kind):
            return value
        if not parts:  # not before: a class may have a field of itself
            parts = tuple(map(_part_of, fields_of(kind).values()))
            required = tuple(one.name for one in fields_of(kind).values() if one.default is _NONE)
        if strict or type(value) is not dict:
            check_known(value, fields_of(kind) if strict else None, "")
        for name in required:
            if name not in value:
                raise SpecError(name, None, "it must be given")
        try:
            given = _read_parts(parts, value, strict)
            return kind(**given)
        except SpecError as error:
            raise _class_error(kind, error) from error.__cause__
        except (TypeError, ValueError, AttributeError) as error:
            # raised by a converter or a check of the class itself
            allowed = f"values of the right types; correct the wrong field ({error})"
            raise SpecError("", "...", allowed) from error

    return read_class


def _read_parts(parts: tuple[_Part, ...], value: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    given = {}
    for field, name, plain, read_item in parts:
        if (item := value.get(name, _NONE)) is not _NONE:
            if type(item) not in plain:
                try:
                    item = read_item(item, strict)
                except SpecError as error:
                    raise _field_error(field, item, error) from error.__cause__
            given[name] = item
    return given


def _part_of(field: attrs.Attribute[Any]) -> _Part:
    kind: Any = field.type
    kinds = get_args(kind) if is_union(kind) else (kind,)
    return field, field.name, frozenset(kinds) & _PLAIN, _reader_of(kind)


def _field_error(field: attrs.Attribute[Any], value: object, error: SpecError) -> SpecError:
    allowed = error.allowed
    try:
        if field.validator is not None and not error.field:
            field.validator(None, field, value)
    except SpecError as better:  # the check of the field says more than its type
        allowed = better.allowed
    except (TypeError, ValueError):
        pass
    return _below(field.name, SpecError(error.field, error.value, allowed))


def _class_error(kind: Any, error: SpecError) -> SpecError:  # noqa: ANN401 - a class
    fields = fields_of(kind)
    place = error.field.removeprefix(f"{kind.__name__}.")
    named = re.split(r"[.\[]", place)[0]
    # what has a `repr` of its own may be a secret
    is_shown = named not in fields or fields[named].repr is True
    return SpecError(place, error.value if is_shown else "...", error.allowed)


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
