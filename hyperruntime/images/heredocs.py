"""Translate the here-documents of Dockerfiles, for builders that cannot read them: all but
BuildKit.

``RUN`` keeps its text, in one line that the shell of the step evaluates. ``COPY`` copies a file
that is written beside the build context. If an exact translation does not exist, SpecError names
the line.

Source: the Dockerfile reference of docs.docker.com, "Here-Documents", "Environment replacement" and
"ARG".
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from hyperruntime.images.copied_files import change_modes
from hyperruntime.images.dockerfile import (
    Heredoc,
    Instruction,
    json_words,
    parse_dockerfile,
    parse_heredoc,
    refuse,
    split_flags,
    split_words,
    write_dockerfile,
)

WAY_OUT = "or build it with Docker 23 or newer and its buildx component"
_DEFAULT_SHELL = ["/bin/sh", "-c"]
_POSIX_SHELLS = ("sh", "ash", "bash", "busybox", "dash", "ksh", "zsh")
_LONGEST_STEP = 100_000  # Linux allows 128 KiB in one argument
_MODE = re.compile(r"--chmod=([^\s$]+)")  # a builder replaces variables
_FILE_NAME = re.compile(r"[\w+-][\w.+-]*")
_PRINTF = {"\\": "\\\\", "%": "%%", "'": "\\047", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_EXPANSION = re.compile(
    r"\\(?P<escaped>.)|\$(?P<special>\d+|[@*#?$!-])|\$(?P<short>\w+)"
    r"|\$\{(?P<name>[^\W\d]\w*)(?:(?P<operator>:?[-+])(?P<word>(?:\\.|[^\\{}])*))?\}|(?P<other>\$\{)",
    re.DOTALL,
)


def translate(text: str, payload: Path, build_args: Mapping[str, str], prefix: str) -> str:
    """Return a Dockerfile without here-documents that builds the same image; write the files that
    it copies.

    Args:
        text: the Dockerfile.
        payload: an empty directory for the files.
        build_args: values for ``ARG``.
        prefix: put before the path of each of these files, which is relative to ``payload``.

    Raises:
        SpecError: a here-document cannot be translated.
    """
    stage = _Stages(build_args)
    lines = []
    for instruction in parse_dockerfile(text):
        stage.take(instruction)
        if not instruction.heredocs:
            lines.append(instruction.source)
        elif instruction.name == "RUN":
            lines.append(_run(instruction, stage))
        elif instruction.name in ("COPY", "ADD"):
            lines += _copies(instruction, stage, payload, prefix)
        else:
            _cannot(instruction, "ONBUILD cannot have a here-document here")
    return "".join(lines)


def _run(instruction: Instruction, stage: _Stages) -> str:
    flags, command = split_flags(instruction.rest)
    first = instruction.heredocs[0]
    if posixpath.basename(stage.shell[0]) not in _POSIX_SHELLS:
        _cannot(
            instruction,
            f"the shell {stage.shell[0]} cannot evaluate it; use a POSIX shell in SHELL",
        )
    if len(split_words(command)) > 1:  # the shell itself reads the here-documents
        step = _evaluated(
            "\n".join([command, *(f"{each.content}{each.name}" for each in instruction.heredocs)])
        )
    elif first.content.startswith("#!"):  # as BuildKit: not after a tab that is stripped
        step = (
            f'f="$(mktemp)" && {_printed(first.text)} > "$f" && chmod 755 "$f" && "$f" && rm -f '
            '"$f"'
        )
    else:
        step = _evaluated(first.text)
    if len(step.encode(errors="surrogateescape")) > _LONGEST_STEP:
        _cannot(
            instruction, "it is longer than a step may be; move it to a file, and COPY and run that"
        )
    return " ".join(["RUN", *flags, step]) + "\n"


def _evaluated(script: str) -> str:
    return f'eval "$({_printed(script)})"'


def _printed(text: str) -> str:
    """Return a shell command, in one line, that writes a text."""
    return "printf '" + "".join(_PRINTF.get(letter, letter) for letter in text) + "'"


def _copies(instruction: Instruction, stage: _Stages, payload: Path, prefix: str) -> Iterator[str]:
    flags, rest = split_flags(instruction.rest)
    *sources, target = split_words(rest)
    if parse_heredoc(target) is not None or any(flag.startswith("--from=") for flag in flags):
        _cannot(instruction, "a here-document must be a source, without --from")
    if len(sources) > 1 and not target.endswith("/"):
        _cannot(instruction, "the target of several sources must end with /")
    mode = next(filter(None, map(_MODE.fullmatch, flags)), None)
    kept = " ".join(word for word in flags if word != "--link" and not (mode and word == mode[0]))
    plain = [word for word in sources if parse_heredoc(word) is None]
    for heredoc in instruction.heredocs:
        if not _FILE_NAME.fullmatch(heredoc.name):
            _cannot(instruction, f"{heredoc.name!r} cannot be the name of a file")
        text = stage.expand(heredoc, instruction) if heredoc.expands else heredoc.text
        file = payload / f"{len(list(payload.iterdir()))}" / heredoc.name
        file.parent.mkdir()
        write_dockerfile(file, text)
        file.chmod(0o644)
        if mode:
            change_modes(instruction, mode[1], file.parent)
        yield f"COPY {kept} {prefix}{file.parent.name}/{file.name} {target}\n"
    if plain:
        yield " ".join([instruction.name, *flags, *plain, target]) + "\n"


def _cannot(instruction: Instruction, why: str) -> NoReturn:
    refuse(instruction.line, f"{instruction.name} {instruction.rest}", f"{why}, {WAY_OUT}")


class _Stages:
    """Follows the shell and the known variables through the stages of a Dockerfile.

    A variable whose value depends on the base image, or on another variable, is unknown.

    Attributes:
        shell: the shell of the current stage.
    """

    def __init__(self, build_args: Mapping[str, str]) -> None:
        self.shell = _DEFAULT_SHELL
        self._given = build_args
        self._known: dict[str, str] = {}
        self._environment: set[str] = set()
        self._globals: dict[str, str] = {}
        self._stages: dict[str, tuple[list[str], dict[str, str]]] = {}
        self._name: str | None = None

    def take(self, instruction: Instruction) -> None:
        """Follow one instruction."""
        words = instruction.rest.split()
        if instruction.name == "FROM":
            self._begin([word for word in words if not word.startswith("--")])
        elif instruction.name == "SHELL":
            self.shell = json_words(instruction.rest) or self.shell
        elif instruction.name in ("ARG", "ENV"):
            self._assign(instruction)

    def _begin(self, words: list[str]) -> None:
        if self._name is None:
            self._globals = self._known
        else:
            self._stages[self._name] = self.shell, self._known
        base = words[0].lower() if words else ""
        shell, known = self._stages.get(base, (_DEFAULT_SHELL, {}))
        self.shell = shell
        self._known = dict(known)
        self._name = words[2].lower() if len(words) > 2 else ""

    def _assign(self, instruction: Instruction) -> None:
        name, blank, value = instruction.rest.partition(" ")
        old_form = instruction.name == "ENV" and "=" not in name and blank
        for word in [f"{name}={value.strip()}"] if old_form else split_words(instruction.rest):
            name, equals, value = word.partition("=")
            if instruction.name == "ARG" and name in self._environment:
                continue  # ENV overrides ARG
            if instruction.name == "ENV":
                self._environment.add(name)
            self._known.pop(name, None)
            given = self._given.get(name, None if equals else self._globals.get(name))
            if instruction.name == "ARG" and given is not None:
                self._known[name] = given
            elif equals and not set(value) & set("$\\"):
                self._known[name] = re.sub(r"""(["'])(.*?)\1""", r"\2", value)

    def expand(self, heredoc: Heredoc, instruction: Instruction) -> str:
        """Return the text of a here-document with its variables replaced.

        Raises:
            SpecError: the value of a variable is unknown.
        """

        def value(found: re.Match[str]) -> str:
            if found["escaped"] or found["special"]:
                return found["escaped"] or ""  # a builder has no arguments and no processes
            known = self._known.get(found["short"] or found["name"])
            if known is None:
                why = (
                    f"the value of {found[0]} is not known; quote the delimiter "
                    f"(<<'{heredoc.name}') to keep the text as it is, give the variable a value "
                    "with ARG or ENV"
                )
                _cannot(instruction, why)
            if found["operator"] is None:
                return known
            is_set = bool(known) or ":" not in found["operator"]
            if ("+" in found["operator"]) == is_set:
                return _EXPANSION.sub(value, found["word"])
            return known if is_set else ""

        return _EXPANSION.sub(value, heredoc.text)
