"""Refuse the ways from a Dockerfile to the machine that builds it, with every engine.

A Dockerfile comes with a task or a repository that somebody else made. A base such as ``docker-archive:FILE`` makes
Podman read any file of this machine. With ``RUN --mount``, Podman before 4.9.4 gives a step any directory of this
machine (CVE-2024-1753, CVE-2024-9675). Other options of RUN give a step the network or the devices of this machine.

Source: the Dockerfile reference of docs.docker.com, "FROM", "RUN --mount", "RUN --network", "RUN --security" and
"Automatic platform ARGs".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hyperruntime.errors import SpecError
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.dockerfile import (
    Instruction,
    parse_dockerfile,
    read_dockerfile,
    refuse,
    split_words,
    write_dockerfile,
)
from hyperruntime.spec import is_image_name

_ESCAPE = re.compile(r"^[ \t]*#[ \t]*escape[ \t]*=[ \t]*[^\\\s]", re.IGNORECASE | re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:(?P<short>\w+)|\{(?P<name>\w+)(?:(?P<operator>:?[-+])(?P<word>[^${}]*))?\})")
_AUTOMATIC = re.compile(r"(TARGET|BUILD)(PLATFORM|OS|OSVERSION|ARCH|VARIANT)")
_STAGE_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_UNSURE = set("$\\\"'")
_SAFE_OPTIONS = ("--network=none", "--network=default")
_NOTHING = frozenset({"type", "required", "id", "target", "dst", "destination", "mode", "uid", "gid", "env"})
# The fields of a mount that cannot name a file of this machine, by its type; this library passes no secret.
_SAFE = {
    "bind": frozenset({"type", "target", "dst", "destination", "source", "src", "ro", "readonly"}),
    "cache": frozenset(
        {"type", "target", "dst", "destination", "id", "ro", "readonly", "sharing", "mode", "uid", "gid"}
    ),
    "tmpfs": frozenset({"type", "target", "dst", "destination", "size"}),
    "secret": _NOTHING,
    "ssh": _NOTHING,
}


@contextmanager
def checked_dockerfile(dockerfile: Path, context: Path, build_args: Mapping[str, str]) -> Iterator[Path]:
    """Yield a Dockerfile that reads nothing of this machine outside its context: the file, or a safe copy of it.

    Args:
        dockerfile: the file.
        context: the build context.
        build_args: values for ``ARG``.

    Raises:
        SpecError: the file names a base that is not the name of an image, mounts what may lie outside the context, or
            has another option of RUN than ``--mount``, ``--network=none`` and ``--network=default``.
    """
    if dockerfile.suffix == ".in":
        raise SpecError("containerfile", str(dockerfile), "its name must not end with .in: Podman would run cpp on it")
    text = read_dockerfile(dockerfile)
    checked = check_dockerfile(text, context, build_args)
    if checked == text:
        yield dockerfile
        return
    with owned_directory() as directory:
        copy = Path(directory) / dockerfile.name
        write_dockerfile(copy, checked)
        yield copy


def check_dockerfile(text: str, context: Path, build_args: Mapping[str, str]) -> str:
    """Return the text of a Dockerfile in which each cache mount has an own identifier, which is not a path.

    Args:
        text: the text.
        context: the build context.
        build_args: values for ``ARG``.

    Raises:
        SpecError: see :func:`checked_dockerfile`.
    """
    if found := _ESCAPE.search(text):
        refuse(text.count("\n", 0, found.start()) + 1, found[0], "the escape character must be a backslash")
    bases, sources = _Bases(build_args), []
    for each in parse_dockerfile(text):
        source, name, rest = each.source, each.name, each.rest
        while name == "ONBUILD":
            name, _, rest = rest.partition(" ")
            name, rest = name.upper(), rest.strip()
        flags = _flags(rest)
        if name == "RUN":
            for flag in flags:
                source = source.replace(flag, _checked_option(each, flag, context), 1)
        elif name in ("COPY", "ADD"):
            for flag in (flag for flag in flags if flag.startswith("--from=")):
                bases.check(each, flag.removeprefix("--from="))
        else:
            bases.take(each, name, rest.split()[len(flags) :])
        sources.append(source)
    return "".join(sources)


class _Bases:
    """Follows the stages of a Dockerfile, and the variables that the names of bases may have."""

    def __init__(self, build_args: Mapping[str, str]) -> None:
        self._given = build_args
        self._first: dict[str, str] = {}  # before the first FROM; builders differ about the others
        self._all: dict[str, str] = {}
        self._stages: set[str] = set()
        self._begun = False

    def take(self, instruction: Instruction, name: str, words: list[str]) -> None:
        """Follow an instruction, and check the base of a FROM."""
        if name == "ARG":
            for word in split_words(" ".join(words)):
                self._assign(word)
        if name == "FROM" and words:
            self._begun = True
            self.check(instruction, words[0])
            if len(words) > 2 and _STAGE_NAME.fullmatch(words[2].lower()):
                self._stages.add(words[2].lower())

    def _assign(self, word: str) -> None:
        variable, equals, default = word.partition("=")
        for known in (self._all,) if self._begun else (self._all, self._first):
            if variable in self._given or equals:
                known[variable] = self._given.get(variable, _expanded(re.sub("[\"']", "", default), known))

    def check(self, instruction: Instruction, base: str) -> None:
        """Check that a base is a stage, or the name of an image.

        Raises:
            SpecError: it is neither.
        """
        for known in (self._first, self._all):
            image = _expanded(base.strip("\"'"), known)
            is_stage = image.lower() in {"scratch", *self._stages} or image.isdecimal()
            if not is_stage and not is_image_name(image):
                allowed = "the base must be the name of an image; load an archive first with `hyperrun image load FILE`"
                refuse(instruction.line, f"{instruction.name} {instruction.rest}", allowed)


def _expanded(text: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found["short"] or found["name"]
        has = known.get(name, "any" if _AUTOMATIC.fullmatch(name) else "")
        operator = found["operator"] or ""
        return str(found["word"]) if operator and bool(has) == operator.endswith("+") else has

    return _VARIABLE.sub(value, text)


def _flags(rest: str) -> list[str]:
    words = rest.split()
    first = next((at for at, word in enumerate(words) if not word.startswith("--")), len(words))
    return words[:first]


def _checked_option(instruction: Instruction, flag: str, context: Path) -> str:
    """Return an option of RUN; see :func:`_checked_mount`.

    Raises:
        SpecError: it is none of ``--mount=``, ``--network=none`` and ``--network=default``.
    """
    if flag.startswith("--mount="):
        return _checked_mount(instruction, flag, context)
    if flag not in _SAFE_OPTIONS:
        allowed = f"RUN may not have {flag!r}; allowed are --mount=, {' and '.join(_SAFE_OPTIONS)}"
        refuse(instruction.line, f"{instruction.name} {instruction.rest}", allowed)
    return flag


def _checked_mount(instruction: Instruction, flag: str, context: Path) -> str:
    """Return a ``--mount`` that can mount only files of the context, and nothing of other builds by their paths.

    Raises:
        SpecError: the mount may lead elsewhere.
    """

    def no(why: str) -> None:
        refuse(instruction.line, f"{instruction.name} {instruction.rest}", f"{why}; copy the files with COPY")

    pairs = [part.partition("=") for part in flag.partition("=")[2].split(",")]
    fields = {name.lower(): value for name, _, value in pairs}
    kind = fields.get("type", "bind").lower()
    if _UNSURE & set(flag) or flag not in instruction.source:
        no("a mount may contain no variables and no quotes")
    if odd := sorted(set(fields) - _SAFE.get(kind, frozenset())):
        no(f"a mount of type {kind} may not have {', '.join(odd)}")
    if {fields.get("ro", ""), fields.get("readonly", "")} - {"", "true"}:
        no("a mount must be read-only")
    inside = (context / fields.get("source", fields.get("src", "")).lstrip("/")).resolve()
    if kind == "bind" and not inside.is_relative_to(context.resolve()):
        no("a mount must lie in the build context, also by its links")
    if kind != "cache":
        return flag
    target = next((fields[name] for name in ("target", "dst", "destination") if name in fields), "")
    own = hashlib.sha256(fields.get("id", target).encode()).hexdigest()[:16]
    kept = [f"{name}={value}" if equals else name for name, equals, value in pairs if name.lower() != "id"]
    return f"--mount={','.join([*kept, f'id={own}'])}"
