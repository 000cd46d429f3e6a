"""Find environments by entry point, ``module:Class`` or ``path/file.py:Class``, and create them with a user's options.

An environment's code is imported only when a caller asks for it by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import attrs

from hyperruntime.registry import ENVIRONMENTS, blaming, load_environment_class, plugins
from hyperruntime.rollout.environment import Environment
from hyperruntime.rollout.loading import Kind, load_named

_KIND = Kind(
    word="environment",
    members=("items", "spec", "setup", "messages", "verify"),
    group=ENVIRONMENTS,
    load=load_environment_class,
)


@attrs.frozen(kw_only=True)
class KnownEnvironment:
    """An installed environment.

    Attributes:
        name: name of its entry point.
        package: the distribution that provides it.
    """

    name: str
    package: str


def known_environments() -> tuple[KnownEnvironment, ...]:
    """Return the installed environments sorted by name, without importing any."""
    found = plugins(ENVIRONMENTS)
    return tuple(KnownEnvironment(name=name, package=found[name].source) for name in sorted(found))


def describe_environment(name: str) -> tuple[str, Mapping[str, str]]:
    """Return an environment's one-line description, and its options with their defaults as text.

    Raises:
        SpecError: no installed environment has this name.
        DriverLoadError: its code is broken.
    """
    made = load_environment_class(name)
    with blaming(ENVIRONMENTS, name):
        given = inspect.signature(made).parameters
        required = inspect.Parameter.empty
        options = {key: "required" if one.default is required else str(one.default) for key, one in given.items()}
        return (inspect.getdoc(made) or "").partition("\n")[0], options


def load_environment(reference: str, options: Mapping[str, Any] | None = None) -> Environment:
    """Create an environment.

    Options are the keyword arguments of its class. Text is converted to the annotated type of the argument: ``int``,
    ``float``, ``bool``, ``tuple[str, ...]`` (comma-separated), each also with ``| None``.

    Args:
        reference: name of an entry point, or ``module:Class``, or ``path/file.py:Class``.
        options: values by name; either text as a user writes it, or a value of the type that the class expects.

    Raises:
        SpecError: the environment does not exist, or an option is unknown, missing or invalid.
        DriverLoadError: its code is broken.
    """
    return cast(Environment, load_named(_KIND, reference, options))
