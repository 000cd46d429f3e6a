"""Fields of option classes: one definition gives the command-line option, the key in TOML files and
the stored value.

A definition is in the metadata of an attrs field. This module knows no command line:
``cli/field_options.py`` derives click's options from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeGuard, TypeVar

import attrs

from hyperruntime.errors import ArchiveError, SpecError, unknown_name
from hyperruntime.json_values import is_integer, is_number
from hyperruntime.settings import reader

_OPTION = "option"
_Options = TypeVar("_Options")


@attrs.frozen
class AtLeast:
    """A check of a field: a finite number; None is allowed if it is the default.

    Attributes:
        least: smallest allowed number.
        whole: whether it must be an integer.
        above: whether it must be larger than ``least``.
    """

    least: int
    whole: bool = True
    above: bool = False

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked
        """Check a value, as an attrs validator."""
        if value is None and attribute.default is None:
            return
        known = (is_integer if self.whole else is_number)(value)
        if not known or value < self.least or (self.above and value == self.least):
            limit = f" above {self.least}" if self.above else f", {self.least} or more"
            raise SpecError(attribute.name, value, f"a {'whole ' * self.whole}number{limit}")


@attrs.frozen
class OneOf:
    """A check of a field: one of some names; None is allowed if it is the default."""

    names: tuple[str, ...]

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        """Check a value, as an attrs validator."""
        if value not in self.names and (value is not None or attribute.default is not None):
            raise SpecError(
                attribute.name, value, unknown_name(attribute.name, str(value), self.names)
            )


ABOVE_ZERO = AtLeast(0, whole=False, above=True)
NOT_NEGATIVE = AtLeast(0, whole=False)
Check = Callable[[Any, Any, Any], None]
Harmless = bool | Callable[[Any], bool]
_SHOWN_CHARS = 200


@attrs.frozen(kw_only=True)
class Option:
    """The option of a field.

    Attributes:
        help: text of ``--help``.
        flag: as on the command line; "": the name of the field, without the suffix ``_s``.
        kind: how the value is written, as in ``cli/field_options.py``, or ``path``; "": follows
            from the check, the default and the suffix of the field (``_s``: a duration; ``_bytes``:
            a size).
        metavar: placeholder in the help; None: the kind's. With one, the allowed names are not
            listed.
        check: the check of the field.
        written: the default as users write it; "": the field's default.
        changes: whether a resumed run may have another value.
        scores: whether another value may change scores, so that each generation's record has it;
            only with ``changes``.
        resume_help: text of ``hyperrun resume --help``; "": the same as ``help``.
        harmless: whether a run directory that somebody else made may choose any value, or a
            function that says it of a value. Not harmless is what names keys, addresses, mounts,
            networks, devices, code or paths of the host, or weakens a limit; see
            :func:`host_requests`.
    """

    help: str
    flag: str = ""
    kind: str = ""
    metavar: str | None = None
    check: Check | None = None
    written: str = ""
    changes: bool = False
    scores: bool = False
    resume_help: str = ""
    harmless: Harmless = False

    def is_harmless(self, value: object) -> bool:
        """Return whether a run directory that somebody else made may choose this value."""
        return self.harmless(value) if callable(self.harmless) else self.harmless


@attrs.frozen(kw_only=True)
class OptionField:
    """An option and its place.

    Attributes:
        path: names of the fields that lead from the options to the value.
        option: its definition.
        default: default of the field.
    """

    path: tuple[str, ...]
    option: Option
    default: Any

    @property
    def flag(self) -> str:
        """The option as on the command line."""
        return self.option.flag or f"--{self.path[-1].removesuffix('_s').replace('_', '-')}"

    @property
    def name(self) -> str:
        """Name of the value among those of the command line."""
        return self.flag.removeprefix("--").replace("-", "_")

    def of(self, options: object) -> Any:  # noqa: ANN401 - of any field
        """Return the value in some options."""
        return attrgetter(".".join(self.path))(options)


def option(default: Any, text: str, *, check: Check | None = None, **more: Any) -> Any:  # noqa: ANN401 - an attrs field
    """Return an attrs field without converter that is an option.

    Args:
        default: default of the field; ``attrs.NOTHING`` for none.
        text: text of ``--help``.
        check: the check of the field.
        more: attributes of :class:`Option`.
    """
    return attrs.field(default=default, validator=check, metadata=about(text, check=check, **more))


def about(text: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - of any attribute
    """Return the metadata of a field that is an option.

    Args:
        text: text of ``--help``.
        more: attributes of :class:`Option`.
    """
    return {_OPTION: Option(help=text, **more)}


def parts(options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the metadata of a field whose value has fields that are options, by dotted name."""
    return {_OPTION: options}


def option_fields(kind: type) -> Iterator[OptionField]:
    """Yield the options of an attrs class, in the order of its fields."""
    for field in attrs.fields(kind):
        found = field.metadata.get(_OPTION, {})
        default = default_of(field)
        if isinstance(found, Option):
            yield OptionField(path=(field.name,), option=found, default=default)
            continue
        for name, inner in found.items():
            given = None if default is None else attrgetter(name)(default)
            yield OptionField(path=(field.name, *name.split(".")), option=inner, default=given)


def at_most(limit: int) -> Callable[[Any], bool]:
    """Return a function for :attr:`Option.harmless`: whether a value is a limit that is not larger
    than ``limit``.
    """
    return lambda value: isinstance(value, (int, float)) and value <= limit


def names_no_code(value: object) -> bool:
    """Return whether names are those of plug-ins only: none has an argument, such as a path, or
    names a file of code.

    Args:
        value: a name, or several, also in lists of lists; anything else is no name.
    """
    if isinstance(value, str):
        return ":" not in value
    return isinstance(value, (list, tuple)) and all(names_no_code(each) for each in value)


def limit_options(most_pids: int, most_disk_bytes: int = 0) -> dict[str, Option]:
    """Return the options of :class:`~hyperruntime.spec.Limits`, by the names of its fields.

    Args:
        most_pids: the largest number of processes that is harmless.
        most_disk_bytes: the largest disk space that is harmless.
    """
    return {
        "memory_bytes": Option(
            flag="--memory",
            help="Limit of memory and swap of each container, such as 2g.",
            harmless=True,
        ),
        "cpus": Option(
            kind="number", help="Limit of cores of each container, such as 1.5.", harmless=True
        ),
        "pids": Option(
            kind="count",
            help="Limit of processes and threads in each container, or none.",
            harmless=at_most(most_pids),
        ),
        "disk_bytes": Option(
            flag="--disk",
            help="Limit of disk space of each container; one that uses more is ended.",
            harmless=at_most(most_disk_bytes),
        ),
        "shm_bytes": Option(
            flag="--shm",
            help="Size of /dev/shm in each container, such as 1g; default: the engine's own.",
            harmless=True,
        ),
    }


def host_requests(options: object, given: Collection[tuple[str, ...]] = ()) -> tuple[str, ...]:
    """Return the values that a run directory must not choose by itself, each as on the command
    line.

    These are the values that differ from their defaults and whose option is not
    :attr:`Option.harmless`. A field without an option is never harmless.

    Args:
        options: an attrs value with options.
        given: paths of the fields that the user gave.
    """
    return tuple(_requests(options, None, {}, given, ()))


def _requests(
    value: Any,  # noqa: ANN401 - any attrs value
    usual: Any,  # noqa: ANN401 - of the same class, or None
    options: Mapping[str, Option],
    given: Collection[tuple[str, ...]],
    above: tuple[str, ...],
) -> Iterator[str]:
    """Yield the requests of an attrs value; ``usual`` has the defaults, if they are not those of
    its class.
    """
    for field in attrs.fields(type(value)):
        path = (*above, field.name)
        now = getattr(value, field.name)
        before = default_of(field) if usual is None else getattr(usual, field.name)
        inner = {
            name.partition(".")[2]: one
            for name, one in options.items()
            if name.startswith(f"{field.name}.")
        }
        found = options.get(field.name) or inner or field.metadata.get(_OPTION)
        if isinstance(found, Mapping) and attrs.has(type(now)):
            yield from _requests(now, before, found, given, path)
        elif (
            now != before
            and path not in given
            and not (isinstance(found, Option) and found.is_harmless(now))
        ):
            flag = (
                OptionField(path=path, option=found, default=None).flag
                if isinstance(found, Option)
                else path[-1]
            )
            yield shown(flag, now)


def shown(flag: str, value: object) -> str:
    """Return a value as on the command line, on one line of limited length, without control
    characters.
    """
    plain = " ".join(value) if _is_names(value) else value
    text = (
        plain
        if isinstance(plain, str)
        else json.dumps(reader.to_json(plain, nulls=True), default=str)
    )
    text = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
    return f"{flag} {text if text.isprintable() else ascii(text)}"


def _is_names(value: object) -> TypeGuard[list[str] | tuple[str, ...]]:
    return isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)


def default_of(field: attrs.Attribute[Any]) -> Any:  # noqa: ANN401 - of any field
    """Return the default of a field; None if it has none."""
    default: Any = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return default.factory()
    return None if default is attrs.NOTHING else default


def changed(options: _Options, values: Mapping[tuple[str, ...], Any]) -> _Options:
    """Return options with other values at the given paths.

    Args:
        options: the options, which stay as they are.
        values: the new value of each path: the names of the fields that lead to it.
    """
    groups: dict[str, dict[tuple[str, ...], Any]] = {}
    for (name, *rest), value in values.items():
        groups.setdefault(name, {})[tuple(rest)] = value
    fields = {
        name: group[()] if () in group else changed(getattr(options, name), group)
        for name, group in groups.items()
    }
    return attrs.evolve(options, **fields)  # type: ignore[misc]


def to_json(options: object) -> dict[str, Any]:
    """Return options as JSON values."""
    return dict(reader.to_json(options, nulls=True))


def from_json(kind: type[_Options], value: Mapping[str, Any], *, strict: bool) -> _Options:
    """Return options from their JSON value; a missing field has its default.

    Args:
        kind: the class of the options.
        value: the stored value.
        strict: whether unknown fields are an error; else they are ignored.

    Raises:
        ArchiveError: a value is not valid.
    """
    try:
        return reader.read(kind, value, path="options", strict=strict)
    except SpecError as error:
        raise ArchiveError(
            f"the options of the run cannot be read: {error}; check whether another version "
            "wrote them"
        ) from error
