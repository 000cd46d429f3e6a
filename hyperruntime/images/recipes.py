"""The image recipes that ship with the library: one folder each, with a Containerfile and a definition file.

A folder may also have ``requirements.txt`` (for pip) and ``recipe.toml``. In the latter, ``wheels_for`` is the image's
Python version, so that pip of the host downloads the wheels, and the build needs no package index and no proxy. pip of
the host uses its own settings; none of them is written into the image. ``[choices.NAME.VALUE]`` lists the build
arguments that the user's argument ``NAME=VALUE`` stands for.
"""

from __future__ import annotations

import platform
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import ImageBuildError, SpecError, name_hint
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.process import python_args, run_process, stream_process
from hyperruntime.images.bootstrap import PACKAGES
from hyperruntime.images.pull_errors import is_local
from hyperruntime.images.requirements_file import write_plain_requirements

PREFIX = "localhost/hyperruntime/"
BASE = "base"
_LOCAL = re.compile(r"localhost/[a-z0-9][a-z0-9._/-]*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")
DEV = "dev"
_PYTHON = "3.11"  # of Debian 12
# The wheels include all dependencies, so pip need not resolve them again.
_INSTALL = f"""\
FROM {PREFIX}{DEV}:latest
ARG PIP_INDEX_URL=https://pypi.org/simple
COPY . /build
RUN if [ -d /build/wheels ]; then \\
        python3 -m pip install --no-cache-dir --no-index --no-deps /build/wheels/*.whl; \\
    else \\
        python3 -m pip install --no-cache-dir --index-url "$PIP_INDEX_URL" --requirement /build/requirements.txt; \\
    fi \\
    && rm -rf /build
"""
# Platform tags, oldest first, of wheels that work with the glibc of Debian 12.
_GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_28", "manylinux_2_34")
# Every builder accepts these without a declaration.
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@attrs.frozen(kw_only=True)
class Recipe:
    """The recipe of an image.

    Attributes:
        name: name of the folder.
        base: the base image, as written.
        declared: build arguments that the Containerfile declares.
        choices: a user's argument, then its value, to the build arguments that it stands for.
        wheels_for: the image's Python version, such as ``3.11``, if the host downloads the wheels; else "".
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
                    raise SpecError(f"build argument {name}", value, f"use one of {', '.join(choices)}")
                found |= choices[value]
            elif name not in (*self.declared, *PROXY_VARIABLES):
                raise SpecError("build argument", name, f"recipe {self.name!r} has none; {name_hint(name, known)}")
        return {**found, **{name: value for name, value in given.items() if name not in self.choices}}

    @contextmanager
    def context(self, on_output: Callable[[str], None]) -> Iterator[Path]:
        """Yield a temporary copy of the folder, with the wheels if the host can download them."""
        with owned_directory() as directory, resources.as_file(_folder() / self.name) as folder:
            copy = Path(directory) / self.name
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
            if self.wheels_for:
                args = pip_args(copy / "requirements.txt", copy / "wheels", self.wheels_for)
                download_wheels([*args, "pip"], copy / "wheels", on_output)
            yield copy


def recipe_names() -> tuple[str, ...]:
    """Return the names of the image recipes that ship with the library."""
    return tuple(sorted(entry.name for entry in _folder().iterdir() if (entry / "Containerfile").is_file()))


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
    """Return whether a name is that of a recipe or a locally built image; not a path, a transport or a registry's."""
    if not isinstance(name, str) or ".." in name:
        return False
    return name in recipe_names() or _LOCAL.fullmatch(name) is not None


def how_to_make(name: str) -> str:
    """Return the command that makes or gets an image."""
    recipe = recipe_of(name)
    if recipe is not None:
        return f"`hyperrun image build {recipe.name}`"
    if is_local(name):
        return f"`hyperrun image build {name} --file ./Containerfile`, or load an archive with `hyperrun image load`"
    if "/" not in name:  # more often a locally built image than one of a registry
        return f"`hyperrun image build {name} --file ./Dockerfile`, or `hyperrun image pull {name}`"
    return f"`hyperrun image pull {name}`"


@contextmanager
def requirements_context(requirements: Path, on_output: Callable[[str], None]) -> Iterator[Path]:
    """Yield a build context that adds the packages of a requirements file to the image `dev`.

    Args:
        requirements: a requirements file of pip.
        on_output: called with each line that pip writes.

    Raises:
        ImageBuildError: the block raised it; if a wheel was missing, the message says why.
    """
    with owned_directory() as directory:
        folder = Path(directory) / "requirements"
        folder.mkdir()
        shutil.copyfile(requirements, folder / "requirements.txt")
        (folder / "Containerfile").write_text(_INSTALL)
        why_not = _download_requirements(requirements, folder / "wheels", on_output)
        try:
            yield folder
        except ImageBuildError as error:
            if not why_not:
                raise
            raise ImageBuildError(
                f"{error}\nthe build downloaded the packages itself, because {why_not}; to build without a network, "
                "let pip of this machine find a wheel for each package (PIP_FIND_LINKS, docs/images.md)"
            ) from error


def _download_requirements(requirements: Path, target: Path, on_output: Callable[[str], None]) -> str:
    """Download the wheels of a requirements file; return "", or why the container must do it."""
    with owned_directory() as directory:
        plain = Path(directory) / "requirements.txt"
        if line := write_plain_requirements(requirements, plain):
            reason = f"pip of this machine reads only names and versions from the file of others, not {line!r}"
            on_output(f"{reason}; the build downloads the packages itself")
            return reason
        return download_wheels(pip_args(plain, target, _PYTHON), target, on_output)


def download_wheels(
    args: Sequence[str], target: Path, on_output: Callable[[str], None], pip: Sequence[str] = ()
) -> str:
    """Download wheels with pip; return "", or the reason if one is missing.

    Then the directory is removed, ``on_output`` receives the reason, and the build downloads the packages itself.

    Args:
        args: the arguments of :func:`pip_args`.
        target: the directory that they create.
        on_output: called with each line that pip writes.
        pip: argv of pip; empty means that of this Python.
    """
    pip = pip or python_args("-m", "pip")
    if run_process([*pip, "--version"]).exit_code != 0:
        reason = f"{pip[0]} has no pip"
    else:
        result = stream_process([*pip, *args], on_line=on_output)
        if result.exit_code == 0 and any(target.glob("*.whl")):
            return ""
        reason = f"pip could not download the wheels ({result.error_text.removeprefix('ERROR: ')})"
    shutil.rmtree(target, ignore_errors=True)
    on_output(f"{reason}; the build downloads the packages itself")
    return reason


def pip_args(requirements: Path, target: Path, python: str) -> list[str]:
    """Return the arguments of pip that download wheels for another Python than the host's.

    Args:
        requirements: a requirements file of pip.
        target: the directory for the wheels.
        python: the image's Python version, such as ``3.11``.
    """
    platforms = [word for glibc in _GLIBC for word in ("--platform", f"{glibc}_{platform.machine()}")]
    args = ["download", "--quiet", "--disable-pip-version-check", "--no-input"]
    args += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]
    return [*args, "--dest", str(target), "--requirement", str(requirements)]


def _folder() -> Any:  # noqa: ANN401 - a Traversable, whose type has no public home before Python 3.14
    return resources.files("hyperruntime_images")
