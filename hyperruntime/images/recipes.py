"""The image recipes that ship with the library: one folder each, with a Containerfile and a
definition file.

A folder may also have ``requirements.txt`` (for pip) and ``recipe.toml``. In the latter,
``wheels_for`` is the image's Python version, so that the build installs wheels that were collected
before it, and needs no package index and no proxy. No setting of the host is written into the
image. ``[choices.NAME.VALUE]`` lists the build arguments that the user's argument ``NAME=VALUE``
stands for.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.bootstrap import PACKAGES
from hyperruntime.images.packages.network import PROXY_VARIABLES
from hyperruntime.images.pull_errors import is_local

PREFIX = "localhost/hyperruntime/"
BASE = "base"
_LOCAL = re.compile(r"localhost/[a-z0-9][a-z0-9._/-]*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")
DEV = "dev"


@attrs.frozen(kw_only=True)
class Recipe:
    """The recipe of an image.

    Attributes:
        name: name of the folder.
        base: the base image, as written.
        declared: build arguments that the Containerfile declares.
        choices: a user's argument, then its value, to the build arguments that it stands for.
        wheels_for: the image's Python version, such as ``3.11``, if the host downloads the wheels;
            else "".
    """

    name: str
    base: str
    declared: tuple[str, ...]
    choices: Mapping[str, Mapping[str, Mapping[str, str]]]
    wheels_for: str

    @property
    def reference(self) -> str:
        """The reference of the built image."""
        return f"{PREFIX}{self.name}:latest"

    @property
    def base_recipe(self) -> str | None:
        """The name of the recipe that builds the base, or None."""
        name = self.base.removeprefix(PREFIX).removesuffix(":latest")
        return name if self.base.startswith(PREFIX) and name in recipe_names() else None

    @property
    def needs_no_registry(self) -> bool:
        """Whether the image can be built without a registry."""
        return self.name in PACKAGES or is_local(self.base)

    def arguments(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the build arguments that a user's arguments stand for.

        Raises:
            SpecError: an argument or its value is unknown.
        """
        known = (*self.choices, *self.declared)
        found: dict[str, str] = {}
        for name, value in given.items():
            if name in self.choices:
                choices = self.choices[name]
                if value not in choices:
                    raise SpecError(
                        f"build argument {name}", value, f"use one of {', '.join(choices)}"
                    )
                found |= choices[value]
            elif name not in (*self.declared, *PROXY_VARIABLES):
                raise SpecError(
                    "build argument",
                    name,
                    f"recipe {self.name!r} has none; {name_hint(name, known)}",
                )
        return {
            **found,
            **{name: value for name, value in given.items() if name not in self.choices},
        }

    @contextmanager
    def context(self, add_wheels: Callable[[Path, str], None]) -> Iterator[Path]:
        """Yield a temporary copy of the folder, with the wheels that the recipe asks for.

        Args:
            add_wheels: writes the wheels of ``requirements.txt`` of this directory, for a version
                of Python, to its new directory ``wheels``.
        """
        with owned_directory() as directory, resources.as_file(_folder() / self.name) as folder:
            copy = Path(directory) / self.name
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
            if self.wheels_for:
                add_wheels(copy, self.wheels_for)
            yield copy


def recipe_names() -> tuple[str, ...]:
    """Return the names of the image recipes that ship with the library."""
    return tuple(
        sorted(entry.name for entry in _folder().iterdir() if (entry / "Containerfile").is_file())
    )


def load_recipe(name: str) -> Recipe:
    """Return a recipe.

    Raises:
        SpecError: the name is unknown.
    """
    if name not in recipe_names():
        raise SpecError("image recipe", name, f"unknown recipe; {name_hint(name, recipe_names())}")
    folder = _folder() / name
    text = (folder / "Containerfile").read_text()
    recipe = folder / "recipe.toml"
    settings = tomllib.loads(recipe.read_text()) if recipe.is_file() else {}
    return Recipe(
        name=name,
        base=re.findall(r"^FROM\s+(\S+)", text, re.MULTILINE)[0],
        declared=tuple(dict.fromkeys(re.findall(r"^ARG\s+(\w+)", text, re.MULTILINE))),
        choices=settings.get("choices", {}),
        wheels_for=settings.get("wheels_for", ""),
    )


def recipe_of(name: str) -> Recipe | None:
    """Return the recipe for its name or its image's reference, or None."""
    short = name.removeprefix(PREFIX).removesuffix(":latest")
    meant = name in recipe_names() or (name.startswith(PREFIX) and short in recipe_names())
    return load_recipe(short) if meant else None


def image_reference(name: str) -> str:
    """Return the image reference of a recipe's name; return any other name unchanged."""
    return load_recipe(name).reference if name in recipe_names() else name


def is_on_this_machine(name: object) -> bool:
    """Return whether a name is that of a recipe or a locally built image; not a path, a transport
    or a registry's.
    """
    if not isinstance(name, str) or ".." in name:
        return False
    return name in recipe_names() or _LOCAL.fullmatch(name) is not None


def how_to_make(name: str) -> str:
    """Return the command that makes or gets an image."""
    recipe = recipe_of(name)
    if recipe is not None:
        return f"`hyperrun image build {recipe.name}`"
    if is_local(name):
        return (
            f"`hyperrun image build {name} --file ./Containerfile`, or load an archive with "
            "`hyperrun image load`"
        )
    if "/" not in name:  # more often a locally built image than one of a registry
        return f"`hyperrun image build {name} --file ./Dockerfile`, or `hyperrun image pull {name}`"
    return f"`hyperrun image pull {name}`"


def _folder() -> Any:  # noqa: ANN401 - a Traversable, whose type has no public home before Python 3.14
    return resources.files("hyperruntime_images")
