"""The images that a Dockerfile is built from, and the variables that their names may have.

Builders differ about variables and their operators. So a FROM with variables is written with their
values, and a builder has nothing to replace in it. The automatic variables of the platform stay,
because only the builder knows them.

Source: the Dockerfile reference of docs.docker.com, "FROM", "Understand how ARG and FROM interact"
and "Automatic platform ARGs".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.images.dockerfile import (
    Instruction,
    assignments,
    parse_dockerfile,
    refuse,
    split_flags,
    trigger,
)
from hyperruntime.images.words import UNKNOWN, expand, unknown
from hyperruntime.settings.image_names import has_transport, is_image_name

_OF_PLATFORM = [
    f"{of}{name}"
    for of in ("TARGET", "BUILD")
    for name in ("PLATFORM", "OS", "OSVERSION", "ARCH", "VARIANT")
]
AUTOMATIC = re.compile(rf"\$(\{{)?({'|'.join(_OF_PLATFORM)})(?(1)\}}|\b)")
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
    """Follows the stages of a Dockerfile, and the variables that the names of bases may have.

    Attributes:
        known: the values of ``ARG`` before the first FROM; builders differ about the others.
    """

    def __init__(
        self, build_args: Mapping[str, str], full_name: Callable[[str], str] = str
    ) -> None:
        """Begin before the first instruction.

        Args:
            build_args: values for ``ARG``.
            full_name: returns what to write for the name of an image.
        """
        self.known = {name: unknown(name) for name in _OF_PLATFORM}
        self._given = build_args
        self._full_name = full_name
        self._stages: set[str] = set()
        self._begun = False

    def assign(self, rest: str) -> None:
        """Follow the text of an ARG.

        Raises:
            SpecError: a quote is not closed.
        """
        for name, default in () if self._begun else assignments(rest):
            if name in self._given:
                self.known[name] = self._given[name]
            elif default is not None:
                try:
                    self.known[name] = expand(default, self.known)
                except SpecError:  # a form that only some builders know: no base may have it
                    self.known[name] = default

    def begin(self, instruction: Instruction, rest: str) -> str:
        """Begin a stage; return the text of a FROM after its options, with the values of variables
        and the full name of an image.

        Args:
            instruction: the FROM.
            rest: its text after the options.

        Raises:
            SpecError: the base is neither a stage nor the name of an image.
        """
        self._begun = True
        base, *others = _BLANKS.split(rest)
        try:
            resolved = self.resolve(base)
        except SpecError as error:
            no(instruction, error.allowed)
        self.check(instruction, resolved)
        if "$" not in resolved and not self.is_stage(resolved):
            resolved = self._full_name(resolved)
        if others:
            name = others[-1].lower()
            if [word.lower() for word in others] != ["as", name] or not _STAGE_NAME.fullmatch(name):
                no(instruction, "after the base, FROM may have only AS and a name")
            self._stages.add(name)
        return rest if resolved == base else " ".join([resolved, *others])

    def resolve(self, base: str) -> str:
        """Return a base with the values of variables; only automatic ones without an operator stay
        in it.

        Raises:
            SpecError: a quote or brace is not closed, or the form of a variable is not supported.
        """
        text = expand(base, self.known).replace(UNKNOWN, "$")
        return base if text == AUTOMATIC.sub(r"${\2}", base) else text

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
