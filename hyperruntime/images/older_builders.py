"""Write Dockerfiles for builders that know less than BuildKit: Podman's, and Docker's before 23.

Of a here-document, ``RUN`` keeps its text, in one line that the shell of the step evaluates.
``COPY`` copies a file that is written beside the build context, also where only its mode needs a
newer builder. If an exact translation does not exist, SpecError names the line.

Source: the Dockerfile reference of docs.docker.com, "Here-Documents", "Environment replacement",
"ARG", "COPY --chmod", "COPY --link" and ".dockerignore files".
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NoReturn

from hyperruntime.errors import SpecError
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.process import run_process
from hyperruntime.images.building.context import Context
from hyperruntime.images.dockerfile import (
    Heredoc,
    Instruction,
    assignments,
    json_words,
    parse_dockerfile,
    parse_heredoc,
    read_dockerfile,
    refuse,
    split_flags,
    split_words,
    write_dockerfile,
)
from hyperruntime.images.dockerfile_bases import Bases, no, without_onbuild
from hyperruntime.images.words import MODE_ALLOWED, UNKNOWN, expand_known, is_mode, unknown

_WAY_OUT = "or build it with Docker 23 or newer and its buildx component"
_DEFAULT_SHELL = ["/bin/sh", "-c"]
_POSIX_SHELLS = ("sh", "ash", "bash", "busybox", "dash", "ksh", "zsh")
_LONGEST_STEP = 100_000  # Linux allows 128 KiB in one argument
_MODE = re.compile(r"--chmod=([^\s$]+)")  # a builder replaces variables
_FILE_NAME = re.compile(r"[\w+-][\w.+-]*")
_PRINTF = {"\\": "\\\\", "%": "%%", "'": "\\047", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LINK = re.compile(r"--link(?:=(?:true|false|1|0))?", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(tar|tgz|gz|bz2|xz|zst)\b")

# From the bottom, because a mode such as 644 closes a directory; links stay. $0: the mode; $1: the
# directory.
_CHANGE_MODES = 'umask 0; exec find "$1" -mindepth 1 -depth ! -type l -exec chmod -- "$0" {} +'

Modes = Literal["none", "octal"]
"""The modes of ``--chmod`` that a builder knows."""


@contextmanager
def for_older_builder(
    containerfile: Path, context: Path, build_args: Mapping[str, str], prefix: str, *, modes: Modes
) -> Iterator[tuple[Path, Path | None]]:
    """Yield a Containerfile without here-documents, ``--link`` and symbolic modes, and the files
    that it copies.

    A file that has none of these is yielded as it is, with None.

    Args:
        containerfile: the file to translate.
        context: the build context.
        build_args: values for ``ARG``.
        prefix: put before the path of each file to copy, which is relative to the directory of
            these files.
        modes: the modes of ``--chmod`` that the builder knows; others are given to the files
            before.

    Raises:
        SpecError: an exact translation does not exist.
    """
    text = read_dockerfile(containerfile)
    with owned_directory() as directory:
        payload = Path(directory) / "files"
        payload.mkdir()
        plain = translate(text, payload, build_args, prefix) if "<<" in text else text
        if "--link" in plain or "--chmod" in plain:
            files = Context(context, containerfile)
            lines: list[str] = []
            for each in parse_dockerfile(plain):
                lines += _older_copy(each, files, payload, prefix, modes=modes)
            plain = "".join(lines)
        if plain == text:
            yield containerfile, None
            return
        made = Path(directory) / "Containerfile"
        write_dockerfile(made, plain)
        yield made, payload


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
            _change_modes(instruction, mode[1], file.parent)
        yield f"COPY {kept} {prefix}{file.parent.name}/{file.name} {target}\n"
    if plain:
        yield " ".join([instruction.name, *flags, *plain, target]) + "\n"


def _cannot(instruction: Instruction, why: str) -> NoReturn:
    refuse(instruction.line, f"{instruction.name} {instruction.rest}", f"{why}, {_WAY_OUT}")


class _Stages:
    """Follows the shell and the known variables through the stages of a Dockerfile.

    A variable whose value depends on the base image is unknown.

    Attributes:
        shell: the shell of the current stage.
    """

    def __init__(self, build_args: Mapping[str, str]) -> None:
        self.shell = _DEFAULT_SHELL
        self._given = build_args
        self._bases = Bases(build_args)
        self._args: dict[str, str] = {}
        self._env: dict[str, str] = {}
        self._stages: dict[str, tuple[list[str], dict[str, str], dict[str, str]]] = {}
        self._name: str | None = None

    def take(self, instruction: Instruction) -> None:
        """Follow one instruction."""
        words = instruction.rest.split()
        if instruction.name == "FROM":
            self._begin([word for word in words if not word.startswith("--")])
        elif instruction.name == "SHELL":
            self.shell = json_words(instruction.rest) or self.shell
        elif instruction.name == "ARG" and self._name is None:
            self._bases.assign(instruction.rest)
        elif instruction.name in ("ARG", "ENV"):
            try:
                self._assign(instruction.rest, is_argument=instruction.name == "ARG")
            except SpecError as error:
                _cannot(instruction, error.allowed)

    def _begin(self, words: list[str]) -> None:
        if self._name is not None:
            self._stages[self._name] = self.shell, self._args, self._env
        base = words[0].lower() if words else ""
        self.shell, args, env = self._stages.get(base, (_DEFAULT_SHELL, {}, {}))
        self._args = dict(args)
        self._env = dict(env)
        self._name = words[2].lower() if len(words) > 2 else ""

    def _assign(self, rest: str, *, is_argument: bool) -> None:
        """Follow an ARG or an ENV; the references of an ENV mean the values before it."""
        values = {}
        for name, text in assignments(rest, old_form=not is_argument):
            values[name] = unknown(name)
            if is_argument and name in self._given:
                values[name] = self._given[name]
            elif text is not None:
                with suppress(SpecError):
                    values[name] = expand_known(text, {**self._args, **self._env})
            elif name in self._bases.known:
                values[name] = self._bases.known[name]
        (self._args if is_argument else self._env).update(values)

    def expand(self, heredoc: Heredoc, instruction: Instruction) -> str:
        """Return the text of a here-document with its variables replaced.

        Raises:
            SpecError: the value of a variable is unknown.
        """
        why = text = ""
        try:
            text = expand_known(heredoc.text, {**self._args, **self._env}, quotes=False)
            if found := re.search(rf"{UNKNOWN}\{{(\w+)", text):
                why = f"the value of ${found[1]} is not known"
        except SpecError as error:
            why = error.allowed
        if why:
            _cannot(
                instruction,
                f"{why}; quote the delimiter (<<'{heredoc.name}') to keep the text as it is, "
                "give the variable a value with ARG or ENV",
            )
        return text


def _older_copy(
    instruction: Instruction, context: Context, payload: Path, prefix: str, *, modes: Modes
) -> Iterator[str]:
    """Yield a ``COPY`` or ``ADD`` without ``--link`` and symbolic ``--chmod``, which older builders
    do not know.

    ``--link`` only makes later builds faster. Files whose modes change are copied to ``payload``,
    and changed there.

    Args:
        instruction: the instruction; others than these and their triggers are yielded as they are.
        context: the files that it copies.
        payload: a directory for changed files.
        prefix: put before the path of a changed file, which is relative to ``payload``.
        modes: the modes that the builder knows.

    Raises:
        SpecError: an exact translation does not exist.
    """
    before, verb, rest = without_onbuild(instruction)
    if verb not in ("COPY", "ADD") or instruction.heredocs:
        yield instruction.source
        return
    flags, rest = split_flags(rest)
    kept = [flag for flag in flags if not _LINK.fullmatch(flag)]
    mode = next((flag.partition("=")[2] for flag in kept if flag.startswith("--chmod=")), "")
    is_variable = modes == "octal" and "$" in mode  # the builder expands it
    if mode and not (is_mode(mode) or is_variable):
        no(instruction, MODE_ALLOWED)
    if not mode or is_variable or (modes == "octal" and mode.isdecimal()):
        yield instruction.source if kept == flags else f"{before}{verb} {' '.join([*kept, rest])}\n"
        return
    words = json_words(rest) or [word.strip("\"'") for word in split_words(rest)]
    if before:
        no(instruction, "with this builder, --chmod cannot be in ONBUILD; use ONBUILD RUN chmod")
    if len(words) < 2 or "$" in rest:
        no(
            instruction,
            "with this builder, --chmod needs sources of the build context, without variables",
        )
    if odd := next((flag for flag in kept if not flag.startswith(("--chmod=", "--chown="))), None):
        no(instruction, f"with this builder, --chmod cannot stand beside {odd}; use RUN chmod")
    if verb == "ADD" and ("://" in rest or _ARCHIVE.search(rest)):
        no(
            instruction,
            "with this builder, ADD of archives and URLs cannot have this --chmod; use RUN chmod",
        )
    tree = payload / f"{len(list(payload.iterdir()))}" / "tree"
    tree.mkdir(parents=True)
    try:
        found = [one for word in words[:-1] for one in context.find(word)]
        for one in found:
            context.copy(one, tree)
    except OSError as error:  # also shutil.Error
        no(instruction, f"its files must be readable ({error})")
    _change_modes(instruction, mode, tree)
    is_file = len(found) == 1 and not (context.path / found[0].path).is_dir()
    name = f"{tree.parent.name}/tree" + (f"/{found[0].name}" if is_file else "")
    options = " ".join(flag for flag in kept if not flag.startswith("--chmod="))
    yield f"COPY {options} {_with_prefix(prefix, name, words[-1])}\n"


def _change_modes(instruction: Instruction, mode: str, directory: Path) -> None:
    """Change the modes of all in a directory, as the ``--chmod`` of an instruction.

    Raises:
        SpecError: there is no such mode.
    """
    if (
        not is_mode(mode)
        or run_process(["sh", "-c", _CHANGE_MODES, mode, str(directory)]).exit_code != 0
    ):
        no(instruction, MODE_ALLOWED)


def _with_prefix(prefix: str, name: str, target: str) -> str:
    option, _, directory = prefix.rpartition(" ")
    words = (f"{directory}{name}", target)
    plain = (
        " ".join(words)
        if not any(re.search(r"[\s\"'\\]", word) for word in words)
        else json.dumps(words)
    )
    return f"{option} {plain}".strip()
