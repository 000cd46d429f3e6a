"""Find environments: by entry point, ``module:Class`` or ``path/file.py:Class``, made with a user's options.

Imports errors and registry. An environment's code is loaded when it is asked for by name, never before.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, UnionType
from typing import Any, cast

import attrs

from hyperruntime.errors import DriverLoadError, HyperRuntimeError, SpecError, name_hint
from hyperruntime.registry import ENVIRONMENTS, blaming, load_environment_class, plugins
from hyperruntime.rollout.environment import Environment

_MEMBERS = ("items", "spec", "setup", "messages", "verify")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@attrs.frozen(kw_only=True)
class KnownEnvironment:
    """An environment that is installed.

    Attributes:
        name: to ask for it by.
        package: the distribution that brings it.
    """

    name: str
    package: str


def known_environments() -> tuple[KnownEnvironment, ...]:
    """Return the installed environments in order of their names, without importing any."""
    found = plugins(ENVIRONMENTS)
    return tuple(KnownEnvironment(name=name, package=found[name].source) for name in sorted(found))


def load_environment(reference: str, options: Mapping[str, Any] | None = None) -> Environment:
    """Make an environment.

    Options are the keyword arguments of its class. Text becomes a number, a truth value or a list where the argument is
    annotated so: ``int``, ``float``, ``bool``, ``tuple[str, ...]`` (parts between commas), each also ``| None``.

    Args:
        reference: name of an entry point; else ``module:Class``, or ``path/file.py:Class``.
        options: by name; values are text as a user writes it, or already what the class wants.

    Raises:
        SpecError: there is no such environment, it takes no such option, or an option is of the wrong form.
        DriverLoadError: its code is broken.
    """
    if ":" in reference:
        with _naming(reference):
            made = _from_code(reference)
            return _make(reference, made, options or {})
    made = load_environment_class(reference)
    with blaming(ENVIRONMENTS, reference):
        return _make(reference, made, options or {})


def _make(reference: str, made: Callable[..., Any], options: Mapping[str, Any]) -> Environment:
    given = _converted(reference, made, options)
    environment = made(**given)
    missing = [name for name in _MEMBERS if not callable(getattr(environment, name, None))]
    if missing:
        raise SpecError("environment", reference, f"its class lacks {', '.join(missing)}; see rollout.environment")
    if not isinstance(getattr(environment, "name", None), str):
        raise SpecError("environment", reference, "its class lacks the text attribute 'name'")
    return cast(Environment, environment)


def _from_code(reference: str) -> Callable[..., Any]:
    place, _, name = reference.rpartition(":")
    module = _module_of_file(reference, place) if place.endswith(".py") else _module(reference, place)
    made = getattr(module, name, None)
    if not callable(made):
        classes = [key for key, value in vars(module).items() if inspect.isclass(value) and not key.startswith("_")]
        raise SpecError("environment", reference, f"{place} has no class {name!r}; {name_hint(name, classes)}")
    return cast(Callable[..., Any], made)


def _module(reference: str, name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise SpecError("environment", reference, "NAME, MODULE:CLASS or PATH/FILE.py:CLASS")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and imports what is not
        why = f"there is no module {error.name!r}; install it, or give the path of its file"
        raise SpecError("environment", reference, why) from None


def _module_of_file(reference: str, path: str) -> ModuleType:
    where = os.path.realpath(path)
    if not os.path.isfile(where):
        raise SpecError("environment", reference, f"there is no file {where!r}")
    name = "hyperruntime_environment_" + "".join(c if c.isalnum() else "_" for c in where)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise SpecError("environment", reference, "PATH/FILE.py:CLASS")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # attrs and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _converted(reference: str, made: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(made).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in options:
        if name not in named and not takes_any:
            raise SpecError(f"option {name}", options[name], f"{reference!r} has no such option; {_hint(name, named)}")
    lacking = [n for n in named if parameters[n].default is inspect.Parameter.empty and n not in options]
    if lacking:
        raise SpecError("environment", reference, f"it needs the option {lacking[0]}: --option {lacking[0]}=VALUE")
    hints = _hints(made)
    return {name: _value(name, value, hints.get(name)) for name, value in options.items()}


def _hint(name: str, named: list[str]) -> str:
    return name_hint(name, named) if named else "it takes none"


def _hints(made: Callable[..., Any]) -> Mapping[str, Any]:
    target = made.__init__ if inspect.isclass(made) else made
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):  # names imported for type checkers only: options stay text
        return {}


def _value(name: str, value: Any, hint: Any) -> Any:  # noqa: ANN401 - whatever the class wants
    if not isinstance(value, str) or hint is None:
        return value
    if typing.get_origin(hint) in (UnionType, typing.Union):
        choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
        hint = choices[0] if len(choices) == 1 else str
    try:
        return _parse(value, hint)
    except ValueError:
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}[hint]
        raise SpecError(f"option {name}", value, wanted) from None


def _parse(value: str, hint: Any) -> Any:  # noqa: ANN401 - a type from an annotation
    if hint is bool:
        if value.lower() not in (*_TRUE, *_FALSE):
            raise ValueError(value)
        return value.lower() in _TRUE
    if hint in (int, float):
        return hint(value)
    if typing.get_origin(hint) in (tuple, list):
        parts = (part.strip() for part in value.split(","))
        return typing.get_origin(hint)(part for part in parts if part)
    return value


@contextmanager
def _naming(reference: str) -> Iterator[None]:
    """Turn what a user's own class lets slip into an error that names it."""
    try:
        yield
    except HyperRuntimeError:
        raise
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DriverLoadError(f"the environment {reference!r} is broken: {what}") from error
