"""The image recipes that ship with the library: one folder each, with a Containerfile and a definition file.

Beside the two may lie ``requirements.txt`` (what pip installs) and ``recipe.toml``: ``wheels_for`` names the image's
Python when pip of the host shall fetch the wheels, and ``[choices.NAME.VALUE]`` says which build arguments the one
argument ``NAME=VALUE`` stands for.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.pull_errors import is_local
from hyperruntime.images.wheels import download_wheels

PREFIX = "localhost/hyperruntime/"
BASE = "base"
# Every builder knows these without their being declared.
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@attrs.frozen(kw_only=True)
class Recipe:
    """What an image is made from.

    Attributes:
        name: the folder's name.
        base: the image it starts from, as written.
        declared: the build arguments that its Containerfile takes.
        choices: per argument of people's and its value, the build arguments that it stands for.
        wheels_for: the image's Python, as ``3.11``, when the host fetches the wheels; else "".
    """

    name: str
    base: str
    declared: tuple[str, ...]
    choices: Mapping[str, Mapping[str, Mapping[str, str]]]
    wheels_for: str

    @property
    def reference(self) -> str:
        """The reference of the image that it makes."""
        return f"{PREFIX}{self.name}:latest"

    @property
    def base_recipe(self) -> str | None:
        """The recipe that makes its base, where a recipe does."""
        name = self.base.removeprefix(PREFIX).removesuffix(":latest")
        return name if self.base.startswith(PREFIX) and name in recipe_names() else None

    @property
    def needs_no_registry(self) -> bool:
        """Whether it can be made where no registry is."""
        return self.name == BASE or is_local(self.base)

    def arguments(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the build arguments that a user's stand for.

        Raises:
            SpecError: the recipe takes no such argument, or not this value.
        """
        known = (*self.choices, *self.declared)
        found: dict[str, str] = {}
        for name, value in given.items():
            if name in self.choices:
                found |= _chosen(name, value, self.choices[name])
            elif name not in (*self.declared, *PROXY_VARIABLES):
                raise SpecError("build argument", name, f"recipe {self.name!r} has none; {name_hint(name, known)}")
        return {**found, **{name: value for name, value in given.items() if name not in self.choices}}

    @contextmanager
    def context(self, on_output: Callable[[str], None]) -> Iterator[Path]:
        """Yield a private copy of its folder, with the wheels it needs where the host can fetch them."""
        with owned_directory() as directory, resources.as_file(_folder() / self.name) as folder:
            copy = Path(directory) / self.name
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
            if self.wheels_for:
                download_wheels(copy / "requirements.txt", copy / "wheels", self.wheels_for, sys.executable, on_output)
            yield copy


def recipe_names() -> tuple[str, ...]:
    """Return the names of the image recipes that ship with the library."""
    return tuple(sorted(entry.name for entry in _folder().iterdir() if (entry / "Containerfile").is_file()))


def load_recipe(name: str) -> Recipe:
    """Return a recipe.

    Raises:
        SpecError: no recipe has this name.
    """
    if name not in recipe_names():
        raise SpecError("image recipe", name, f"no recipe has this name; {name_hint(name, recipe_names())}")
    text = (_folder() / name / "Containerfile").read_text()
    settings = _settings(name)
    return Recipe(
        name=name,
        base=re.findall(r"^FROM\s+(\S+)", text, re.MULTILINE)[0],
        declared=tuple(dict.fromkeys(re.findall(r"^ARG\s+(\w+)", text, re.MULTILINE))),
        choices=settings.get("choices", {}),
        wheels_for=settings.get("wheels_for", ""),
    )


def recipe_of(name: str) -> Recipe | None:
    """Return the recipe that a name or an image's reference means, if one does."""
    short = name.removeprefix(PREFIX).removesuffix(":latest")
    meant = name in recipe_names() or (name.startswith(PREFIX) and short in recipe_names())
    return load_recipe(short) if meant else None


def image_reference(name: str) -> str:
    """Return the reference that a recipe's name means; what is no recipe's name is a reference."""
    return load_recipe(name).reference if name in recipe_names() else name


def _chosen(name: str, value: str, choices: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    if value not in choices:
        raise SpecError(f"build argument {name}", value, f"one of {', '.join(choices)}")
    return choices[value]


def _settings(name: str) -> dict[str, Any]:
    path = _folder() / name / "recipe.toml"
    return tomllib.loads(path.read_text()) if path.is_file() else {}


def _folder() -> Any:  # noqa: ANN401 - a Traversable, whose type has no public home before Python 3.14
    return resources.files("hyperruntime_images")
