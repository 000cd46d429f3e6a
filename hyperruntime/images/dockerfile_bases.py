"""The images that a Dockerfile is built from, and the variables that their names may have.

Builders differ about variables and their operators. So a FROM with variables is written with their
values, and a builder has nothing to replace in it. The automatic variables of the platform stay,
because only the builder knows them.

Source: the Dockerfile reference of docs.docker.com, "FROM", "Understand how ARG and FROM interact"
and "Automatic platform ARGs".
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import attrs

from hyperruntime.host.owner import owned_directory
from hyperruntime.images.dockerfile import (
    Instruction,
    parse_dockerfile,
    read_dockerfile,
    refuse,
    split_flags,
    split_words,
    trigger,
    write_dockerfile,
)
from hyperruntime.images.pull_errors import full_name
from hyperruntime.spec import has_transport, is_image_name

_VARIABLE = re.compile(
    r"\$(?:(?P<short>\w+)|\{(?P<name>\w+)(?:(?P<operator>:?[-+])(?P<word>[^${}]*))?\})", re.ASCII
)
AUTOMATIC = re.compile(
    r"\$(\{)?((?:TARGET|BUILD)(?:PLATFORM|OS|OSVERSION|ARCH|VARIANT))(?(1)\}|\b)"
)
_STAGE_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_NUMBER = re.compile(r"[0-9]+")
_BLANKS = re.compile(r"[ \t]+")
_FROM = "--from="
_PLATFORM = "--platform="


@attrs.frozen
class NamedImage:
    """An image that a Dockerfile names.

    Attributes:
        reference: its name.
        platform: of ``FROM --platform``; "" if the file leaves it to the builder.
    """

    reference: str
    platform: str = ""


class Bases:
    """Follows the stages of a Dockerfile, and the variables that the names of bases may have."""

    def __init__(self, build_args: Mapping[str, str]) -> None:
        """Begin before the first instruction.

        Args:
            build_args: values for ``ARG``.
        """
        self._given = build_args
        self._known: dict[str, str] = {}  # before the first FROM: builders differ about the others
        self._stages: set[str] = set()
        self._begun = False

    def assign(self, rest: str) -> None:
        """Follow the text of an ARG."""
        for word in () if self._begun else split_words(rest):
            variable, equals, default = word.partition("=")
            if variable in self._given or equals:
                value = _expanded(re.sub("[\"']", "", default), self._known)
                self._known[variable] = self._given.get(variable, value)

    def begin(self, instruction: Instruction, rest: str) -> str:
        """Begin a stage; return the text of a FROM after its options, with the values of variables.

        Args:
            instruction: the FROM.
            rest: its text after the options.

        Raises:
            SpecError: the base is neither a stage nor the name of an image.
        """
        self._begun = True
        base, *others = _BLANKS.split(rest)
        resolved = self.resolve(base)
        self.check(instruction, resolved)
        if others:
            name = others[-1].lower()
            if [word.lower() for word in others] != ["as", name] or not _STAGE_NAME.fullmatch(name):
                no(instruction, "after the base, FROM may have only AS and a name")
            self._stages.add(name)
        return rest if resolved == base else " ".join([resolved, *others])

    def resolve(self, base: str) -> str:
        """Return a base with the values of variables; only automatic ones stay in it."""
        return _expanded(base.strip("\"'"), self._known)

    def check(self, instruction: Instruction, base: str) -> None:
        """Check that a base is a stage, or the name of an image.

        Raises:
            SpecError: it is neither.
        """
        # a variant may be empty
        with_any, without = (AUTOMATIC.sub(value, base) for value in ("any", ""))
        if not self.is_stage(base) and (not is_image_name(with_any) or has_transport(without)):
            no(
                instruction,
                "the base must be the name of an image; load an archive first with `hyperrun "
                "image load FILE`",
            )

    def is_stage(self, base: str) -> bool:
        """Return whether a base is none that an engine has: an earlier stage, or nothing."""
        return base.lower() in {"scratch", *self._stages} or _NUMBER.fullmatch(base) is not None


def named_images(text: str) -> Iterator[NamedImage]:
    """Yield the images that a checked Dockerfile names in FROM and ``COPY --from``, in order; they
    may come again.

    Args:
        text: what :func:`hyperruntime.images.dockerfile_checks.check_dockerfile` returned.
    """
    bases = Bases({})
    for each in parse_dockerfile(text):
        _, name, rest = without_onbuild(each)
        flags, rest = split_flags(rest)
        if name == "FROM":
            image = _BLANKS.split(rest)[0]
            if not bases.is_stage(image):
                yield NamedImage(image, next((flag.removeprefix(_PLATFORM) for flag in flags), ""))
            bases.begin(each, rest)
        elif name in ("COPY", "ADD"):
            sources = [flag.removeprefix(_FROM) for flag in flags if flag.startswith(_FROM)]
            yield from (NamedImage(image) for image in sources if not bases.is_stage(image))


@contextmanager
def with_registry(
    dockerfile: Path,
    registry: str | None,
    build_args: Mapping[str, str],
    is_here: Callable[[str], bool],
) -> Iterator[Path]:
    """Yield a Dockerfile in which base images without a registry get one; the given file if
    ``registry`` is None.

    Args:
        dockerfile: the file.
        registry: such as ``docker.io``.
        build_args: values for ``ARG``.
        is_here: returns whether an image is on this machine already; such a name is kept.
    """
    if registry is None:
        yield dockerfile
        return
    with owned_directory() as directory:
        made = Path(directory) / dockerfile.name
        for ignore in (".dockerignore", ".containerignore"):  # of this file alone
            if (own := dockerfile.with_name(dockerfile.name + ignore)).exists():
                shutil.copyfile(own, made.with_name(own.name), follow_symlinks=False)
        write_dockerfile(
            made, _with_registry(read_dockerfile(dockerfile), registry, build_args, is_here)
        )
        yield made


def _with_registry(
    text: str, registry: str, build_args: Mapping[str, str], is_here: Callable[[str], bool]
) -> str:
    bases = Bases(build_args)
    lines = []
    for each in parse_dockerfile(text):
        source = each.source
        rest = split_flags(each.rest)[1]
        if each.name == "ARG":
            bases.assign(rest)
        if each.name == "FROM":
            written = _BLANKS.split(rest)[0]
            image = bases.resolve(written)
            is_named = not bases.is_stage(image)
            bases.begin(each, rest)  # after it, the name of this stage may be that of the image
            if is_named and "$" not in image and not is_here(image):
                source = re.sub(
                    rf"(?<=\s){re.escape(written)}(?!\S)",
                    full_name(image, registry),
                    source,
                    count=1,
                )
        lines.append(source)
    return "".join(lines)


def without_onbuild(instruction: Instruction) -> tuple[str, str, str]:
    """Return the ``ONBUILD`` of an instruction, the name of what it triggers, and the text after
    that name.
    """
    before = ""
    name = instruction.name
    rest = instruction.rest
    while name == "ONBUILD":
        before += f"{name} "
        name, rest = trigger(rest)
    return before, name, rest


def no(instruction: Instruction, why: str) -> NoReturn:
    """Refuse an instruction.

    Raises:
        SpecError: always.
    """
    refuse(instruction.line, f"{instruction.name} {instruction.rest}", why)


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Return a text with the values of variables; only automatic ones without an operator stay in
    it.
    """

    def value(found: re.Match[str]) -> str:
        name = found["short"] or found["name"]
        if name not in known and AUTOMATIC.fullmatch(f"${name}"):
            return found[0]
        has = known.get(name, "")
        operator = found["operator"] or ""
        is_set = bool(has) if ":" in operator else name in known
        if operator.endswith("+"):
            return found["word"] if is_set else ""
        return found["word"] if operator and not is_set else has

    return _VARIABLE.sub(value, text)
