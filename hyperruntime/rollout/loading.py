"""Create the object that a user names by entry point, ``module:Class`` or ``path/file.py:Class``,
with their options.

Code is imported only when a caller asks for it by name.
"""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.registry import (
    ENVIRONMENTS,
    blaming,
    blaming_code,
    check_interface,
    completed,
    load_code,
    load_environment_class,
    plugins,
)
from hyperruntime.rollout.agent.agent import Agent, run_agent
from hyperruntime.rollout.environment import (
    EnvironmentBase,
    UnscoredEnvironment,
    UnscoredEnvironmentBase,
)
from hyperruntime.settings.texts import of_text


@attrs.frozen(kw_only=True)
class Kind:
    """A kind of object that users name: an environment, a trainer, an agent.

    Attributes:
        word: name of the kind in messages.
        members: methods that its class must have.
        group: entry point group, or None if it has none.
        load: returns the class of an entry point.
        option: command-line option that sets an option of the object.
        code: ``class`` or ``function``.
    """

    word: str
    members: Sequence[str]
    group: str | None = None
    load: Callable[[str], Callable[..., Any]] | None = None
    option: str = "--option"
    code: str = "class"

    @property
    def forms(self) -> str:
        """Return the allowed forms of a reference, for messages."""
        code = self.code.upper()
        return f"{'NAME, ' if self.group else ''}MODULE:{code} or PATH/FILE.py:{code}"

    def of_code(self, reference: str) -> Callable[..., Any]:
        """Return the class or function of ``MODULE:NAME`` or ``PATH/FILE.py:NAME``; see
        :func:`load_code`.
        """
        return load_code(reference, self.word, self.forms, code=self.code)


_ENVIRONMENT = Kind(
    word="environment",
    members=("items", "spec", "setup", "messages", "verify"),
    group=ENVIRONMENTS,
    load=load_environment_class,
)


def known_environments() -> dict[str, str]:
    """Return the package of each installed environment, sorted by name, without importing any."""
    return {name: plugin.source for name, plugin in sorted(plugins(ENVIRONMENTS).items())}


def describe_environment(name: str) -> tuple[str, Mapping[str, Any], tuple[str, ...]]:
    """Return an environment's one-line description, its options with their defaults, and which of
    them are required.

    A default is a JSON value; that of a required option is None.

    Raises:
        SpecError: no installed environment has this name.
        DriverLoadError: its code is broken.
    """
    made = load_environment_class(name)
    with blaming(ENVIRONMENTS, name):
        given = inspect.signature(made).parameters
        required = inspect.Parameter.empty
        needed = tuple(key for key, one in given.items() if one.default is required)
        options = {
            key: None if key in needed else _as_json(one.default) for key, one in given.items()
        }
        return (inspect.getdoc(made) or "").partition("\n")[0], options, needed


def _as_json(value: Any) -> Any:  # noqa: ANN401 - any default
    return (
        value
        if value is None or isinstance(value, str | int | float | list | tuple)
        else str(value)
    )


def load_environment(reference: str, options: Mapping[str, Any] | None = None) -> EnvironmentBase:
    """Create an environment.

    Args:
        reference: name of an entry point, or ``module:Class``, or ``path/file.py:Class``.
        options: values by name; text is converted as in :func:`load_named`.

    Raises:
        SpecError: the environment does not exist, or an option is unknown, missing or invalid.
        DriverLoadError: its code is broken.
    """
    return completed(load_named(_ENVIRONMENT, reference, options), EnvironmentBase)


def completed_environment(environment: UnscoredEnvironment) -> UnscoredEnvironmentBase:
    """Return an environment of any class with all members of the base class; it gives rewards if it
    has ``verify``.
    """
    if hasattr(environment, "verify"):
        return completed(environment, EnvironmentBase)
    return completed(environment, UnscoredEnvironmentBase)


def load_agent(reference: str | None) -> Agent:
    """Return an agent by ``module:function`` or ``path/file.py:function``; None means the default
    agent.

    Raises:
        SpecError: the module, the file or the function does not exist.
        DriverLoadError: its code is broken.
    """
    if reference is None:
        return run_agent
    kind = Kind(word="agent", members=(), code="function")
    with blaming_code(kind.word, reference):
        return cast(Agent, kind.of_code(reference))


def absolute_code(reference: str) -> str:
    """Return a reference whose file, if it has one, is named by an absolute path: valid in any
    working directory.
    """
    where, colon, name = reference.rpartition(":")
    return f"{os.path.abspath(where)}:{name}" if colon and where.endswith(".py") else reference


def load_named(kind: Kind, reference: str, options: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - of its kind
    """Create an object of a kind.

    Options are the keyword arguments of its class. Text is converted to the annotated type of the
    argument: ``int``, ``float``, ``bool``, ``tuple[str, ...]`` (comma-separated), each also with
    ``| None``.

    Args:
        kind: the kind of object.
        reference: name of an entry point, or ``module:Class``, or ``path/file.py:Class``.
        options: values by name; either text as a user writes it, or a value of the type that the
            class expects.

    Raises:
        SpecError: the object does not exist, or an option is unknown, missing or invalid.
        DriverLoadError: its code is broken.
    """
    if ":" in reference or kind.group is None or kind.load is None:
        with blaming_code(kind.word, reference):
            made = kind.of_code(reference)
            check_interface(kind.group or "", made, f"the {kind.word} {reference!r}")
            return _make(kind, reference, made, options or {})
    made = kind.load(reference)
    with blaming(kind.group, reference):
        return _make(kind, reference, made, options or {})


def _make(kind: Kind, reference: str, made: Callable[..., Any], options: Mapping[str, Any]) -> Any:  # noqa: ANN401
    given = _converted(kind, reference, made, options)
    one = made(**given)
    missing = [name for name in kind.members if not callable(getattr(one, name, None))]
    if missing:
        raise SpecError(
            kind.word,
            reference,
            f"its class lacks {', '.join(missing)}; see the interface's Protocol",
        )
    if not isinstance(getattr(one, "name", None), str):
        raise SpecError(kind.word, reference, "its class lacks the text attribute 'name'")
    return one


def _converted(
    kind: Kind, reference: str, made: Callable[..., Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    parameters = inspect.signature(made).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [
        name
        for name, p in parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    for name in options:
        if name not in named and not takes_any:
            hint = name_hint(name, named) if named else "it has no options"
            raise SpecError(
                f"option {name}", options[name], f"{reference!r} has no such option; {hint}"
            )
    lacking = [
        n for n in named if parameters[n].default is inspect.Parameter.empty and n not in options
    ]
    if lacking:
        raise SpecError(
            kind.word,
            reference,
            f"it needs the option {lacking[0]}: {kind.option} {lacking[0]}=VALUE",
        )
    hints = _hints(made)
    return {
        name: of_text(hints[name], value, f"option {name}")
        if isinstance(value, str) and name in hints
        else value
        for name, value in options.items()
    }


def _hints(made: Callable[..., Any]) -> Mapping[str, Any]:
    target = made.__init__ if inspect.isclass(made) else made
    try:
        return typing.get_type_hints(target)
    # some names exist only for type checkers; options stay text
    except (NameError, TypeError, AttributeError):
        return {}
