"""Find environments: by entry point, ``module:Class`` or ``path/file.py:Class``, made with a user's options.

An environment's code is loaded when it is asked for by name, never before.
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


def describe_environment(name: str) -> tuple[str, Mapping[str, str]]:
    """Return an installed environment's description in a line, and its options with their defaults as text.

    Raises:
        SpecError: there is none of this name.
        DriverLoadError: its code is broken.
    """
    made = load_environment_class(name)
    with blaming(ENVIRONMENTS, name):
        given = inspect.signature(made).parameters
        required = inspect.Parameter.empty
        options = {key: "required" if one.default is required else str(one.default) for key, one in given.items()}
        return (inspect.getdoc(made) or "").partition("\n")[0], options


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
    return cast(Environment, load_named(_KIND, reference, options))
