"""Convert Containerfiles to definition files, for machines whose only engine is Apptainer.

The last stage is built, with the stages that it begins from; no stage copies from another. The
steps run in the shell, directory and variables that they set. Instructions for the start of a
container (``CMD``, ``EXPOSE``, ...) are skipped, because the caller gives the command. Other
instructions that are not supported raise SpecError.

Source: the Dockerfile reference of docs.docker.com.
"""

from __future__ import annotations

import os
import posixpath
import re
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import NoReturn

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.dockerfile import (
    Instruction,
    json_words,
    parse_dockerfile,
    read_dockerfile,
)
from hyperruntime.images.dockerfile_bases import Bases
from hyperruntime.images.older_builders import BuildContext, for_older_builder
from hyperruntime.images.variables import (
    GIVEN,
    OF_THE_RUN,
    Reference,
    Value,
    assignments,
    parse_value,
    quoted,
)

_WORK = "/.hyperruntime-build"
_PAYLOAD = "payload"
_FOR_THE_START = (
    "CMD",
    "ENTRYPOINT",
    "EXPOSE",
    "HEALTHCHECK",
    "MAINTAINER",
    "STOPSIGNAL",
    "VOLUME",
)
_OF_A_SHELL = '"\\$`'
_CHMOD = re.compile(r"--chmod=(\S+)\s+")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # of a variable in a shell
_LABEL = re.compile(r"[^\s$\\#][^\s$\\]*")  # a line that begins with # would be a comment
_ROOT = ("root", "0", "root:root", "0:0")


@attrs.frozen(kw_only=True)
class Converted:
    """A converted Containerfile.

    Attributes:
        path: the definition file.
        workdir: working directory of the image's commands.
        build_args: values for the placeholders of the definition file, which an image must not
            keep.
    """

    path: Path
    workdir: str
    build_args: Mapping[str, str]


@contextmanager
def definition_of(
    containerfile: Path,
    context: Path,
    build_args: Mapping[str, str],
    workdir_of: Callable[[str], str],
) -> Iterator[Converted]:
    """Yield a definition file that builds the same image as a checked Containerfile.

    The ``%files`` of the definition file are relative to its directory.

    Args:
        containerfile: the file to convert.
        context: directory that ``COPY`` and ``ADD`` copy from.
        build_args: values for ``ARG``.
        workdir_of: returns the working directory of a base image, which must be on this machine
            then.

    Raises:
        SpecError: the Containerfile uses an unsupported instruction or form.
    """
    with owned_directory() as directory:
        folder = Path(directory) / "build"
        (folder / _PAYLOAD).mkdir(parents=True)
        prefix = f".hyperruntime-{secrets.token_hex(8)}/"  # which a Dockerfile cannot name
        with for_older_builder(containerfile, context, build_args, prefix, modes="all") as (
            plain,
            files,
        ):
            copied = None if files is None else (prefix, files)
            maker = _Maker(
                BuildContext(context, containerfile),
                folder / _PAYLOAD,
                build_args,
                workdir_of,
                copied,
            )
            maker.take_all([each for each in parse_dockerfile(read_dockerfile(plain)) if each.name])
        text = maker.text()
        if not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text):
            _refuse(os.fspath(containerfile), "the file must be UTF-8")
        (folder / "container.def").write_text(text)
        yield Converted(
            path=folder / "container.def", workdir=maker.workdir, build_args=maker.secrets
        )


class _Maker:
    """Collects the parts of a definition file.

    Attributes:
        workdir: working directory of the next step.
        secrets: given build arguments, quoted for a shell.
    """

    def __init__(
        self,
        context: BuildContext,
        payload: Path,
        build_args: Mapping[str, str],
        workdir_of: Callable[[str], str],
        files: tuple[str, Path] | None,
    ) -> None:
        self.workdir = "/"
        self.secrets: dict[str, str] = {}
        self._files = files
        self._workdir_of = workdir_of
        self._context = context
        self._payload = payload
        self._given = build_args
        self._base = ""
        self._begun = False
        self._bases = Bases(build_args)
        self._known: dict[str, Value] = {}
        self._of_env: set[str] = set()
        self._shell = ["/bin/sh", "-c"]
        self._post = ["umask 022"]  # as in a step of Docker, whatever the caller's is
        self._environment: list[str] = []
        self._copies = 0

    def take_all(self, instructions: Sequence[Instruction]) -> None:
        """Convert a Containerfile.

        Args:
            instructions: its instructions.

        Raises:
            SpecError: an instruction of a stage that is needed is not supported.
        """
        starts = [at for at, each in enumerate(instructions) if each.name == "FROM"]
        for each in instructions[: starts[0] if starts else None]:
            self._take(each.name, each.rest)
        needed = list[int]()
        stage = len(starts) - 1
        while stage >= 0:
            needed.insert(0, stage)
            base = self._base_of(instructions[starts[stage]].rest)[0]
            names = [self._base_of(instructions[start].rest)[1] for start in starts[:stage]]
            stage = max((at for at, name in enumerate(names) if name == base.lower()), default=-1)
            if stage < 0:
                self._base = base
        for stage in needed:
            self._begin_stage()
            end = starts[stage + 1] if stage + 1 < len(starts) else None
            for each in instructions[starts[stage] + 1 : end]:
                self._take(each.name, each.rest)

    def _take(self, instruction: str, rest: str) -> None:
        """Convert one instruction.

        Args:
            instruction: in capitals.
            rest: the rest of its line.

        Raises:
            SpecError: the instruction is not supported.
        """
        if instruction in _FOR_THE_START:
            return
        method = getattr(self, f"_take_{instruction.lower()}", None)
        if method is None:
            _refuse(instruction, "the instruction is not supported without Podman and Docker")
        if not self._begun and instruction != "ARG":
            _refuse(instruction, "FROM must come first")
        method(rest)

    def text(self) -> str:
        """Return the text of the definition file."""
        if not self._base:
            _refuse("no FROM", "the file must have FROM and an image")
        parts = [f"Bootstrap: localimage\nFrom: {self._base}\n"]
        if self._copies:
            parts.append(f"%files\n    {_PAYLOAD} {_WORK}\n")
        parts.append("%post\n" + "".join(f"    {line}\n" for line in self._post))
        parts.append(f"    rm -rf {_WORK}\n")
        if self._environment:
            parts.append("%environment\n" + "".join(f"    {line}\n" for line in self._environment))
        return "\n".join(parts)

    def _base_of(self, rest: str) -> tuple[str, str]:
        """Return the base of a stage, and the name of the stage in small letters."""
        words = [word for word in rest.split() if not word.startswith("--platform")]
        if not words or words[0] == "scratch":
            _refuse(f"FROM {rest}", "FROM must name an image")
        return self._bases.resolve(words[0]), words[-1].lower() if len(words) > 1 else ""

    def _begin_stage(self) -> None:
        """Begin with the base image, or with the stage before: its arguments end, its variables
        stay.
        """
        if not self._begun:
            self.workdir = self._workdir_of(self._base)
            self._begun = True
            if self.workdir != "/":
                self._enter()
        elif ended := sorted(set(self._known) - self._of_env):
            self._post.append(f"unset {' '.join(ended)}")
            self._known = {
                name: value for name, value in self._known.items() if name in self._of_env
            }

    def _take_arg(self, rest: str) -> None:
        if not self._begun:
            self._bases.assign(rest)
            return
        for name, text in assignments(rest):
            if not _NAME.fullmatch(name):
                _refuse(f"ARG {rest}", "names must be letters, digits and _")
            if name not in self._of_env:  # ENV overrides ARG
                self._set_argument(name, text)

    def _set_argument(self, name: str, text: str | None) -> None:
        if self._given.get(name):
            self.secrets[name] = _plain(shlex.quote(self._given[name]))
            self._known[name] = (Reference(name, operator=GIVEN),)
            self._post.append(f"export {name}={{{{ {name} }}}}")
        elif text is not None or name in {**self._bases.known, **self._given}:
            first = self._bases.known.get(name, ())
            value = first if text is None else parse_value(text, self._lookup)
            self._known[name] = () if name in self._given else value
            self._post.append(f"export {name}={_rendered(self._known[name])}")

    def _lookup(self, name: str) -> Value | None:
        """Return the value of a variable; those of the base image are read by the shell."""
        if name in self._known:
            return self._known[name]
        return None if name in OF_THE_RUN else (Reference(name),)

    def _take_env(self, rest: str) -> None:
        values: dict[str, Value] = {}
        for name, text in assignments(rest, old_form=True):
            if text is None or not _NAME.fullmatch(name):
                _refuse(
                    f"ENV {rest}",
                    "each variable must have a value, and a name of letters, digits and _",
                )
            # with the values before this instruction
            values[name] = parse_value(text, self._lookup)
        lines = [f"export {name}={_rendered(value)}" for name, value in values.items()]
        self._known |= values
        self._of_env |= set(values)
        self._post += lines
        self._environment += lines

    def _take_label(self, rest: str) -> None:
        for name, text in assignments(rest, old_form=True):
            if text is None or not _LABEL.fullmatch(name):
                _refuse(
                    f"LABEL {rest}",
                    "each label must have a value, and a plain name that does not begin with #",
                )
            parts = [self._with_given(part) for part in parse_value(text, self._lookup)]
            value = tuple(
                part.replace("\n", " ") if isinstance(part, str) else part for part in parts
            )
            # Not in %labels, where nothing keeps Apptainer from reading ``{{`` as a build argument.
            words = f"{_plain(shlex.quote(name))} {_rendered(value)}"
            self._post.append(f"printf '%s %s\\n' {words} >> \"$APPTAINER_LABELS\"")

    def _take_shell(self, rest: str) -> None:
        self._shell = json_words(rest) or _refuse(
            f"SHELL {rest}", 'SHELL must be a list such as ["/bin/bash", "-c"]'
        )

    def _take_user(self, rest: str) -> None:
        if rest not in _ROOT:
            _refuse(f"USER {rest}", "the user must be root; Apptainer images have no user")

    def _take_workdir(self, rest: str) -> None:
        parts = [self._with_given(part) for part in parse_value(rest, self._lookup)]
        if not parts or not all(isinstance(part, str) for part in parts):
            _refuse(
                f"WORKDIR {rest}",
                "the values of its variables must be in the Containerfile, or given",
            )
        self.workdir = posixpath.normpath(posixpath.join(self.workdir, "".join(map(str, parts))))
        self._enter()

    def _enter(self) -> None:
        """Let the next steps run in the working directory."""
        self._post += [_plain(f"{verb} {shlex.quote(self.workdir)}") for verb in ("mkdir -p", "cd")]

    def _with_given(self, part: str | Reference) -> str | Reference:
        """Return the value of a given argument; the image has it then, as Docker's image does."""
        return (
            self._given[part.name]
            if isinstance(part, Reference) and part.operator == GIVEN
            else part
        )

    def _take_run(self, rest: str) -> None:
        if rest.startswith("--"):
            _refuse(f"RUN {rest}", "options of RUN are not supported")
        args = json_words(rest) or [*self._shell, rest]
        self._post.append(_plain(shlex.join(args)))

    def _take_add(self, rest: str) -> None:
        if "://" in rest or re.search(r"\.(tar|tgz|gz|bz2|xz)\b", rest):
            _refuse(f"ADD {rest}", "archives and URLs are not supported; use COPY with files")
        self._take_copy(rest)

    def _take_copy(self, rest: str) -> None:
        option = _CHMOD.match(rest)
        mode, rest = (option[1], rest[option.end() :]) if option else ("", rest)
        words = json_words(rest) or _split(rest)
        if len(words) < 2 or words[0].startswith("--") or "$" in rest:
            _refuse(
                f"COPY {rest}",
                "write sources and a target without variables; options may be --link and --chmod",
            )
        target = posixpath.normpath(posixpath.join(self.workdir, words[-1]))
        found = [path for word in words[:-1] for path in self._sources(word)]
        into = words[-1].endswith(("/", "/.")) or words[-1] in (".", "..") or len(found) > 1
        for path in found:
            name = self._stage(path)
            self._post += (
                [_plain(f"(umask 0; chmod -R {shlex.quote(mode)} {shlex.quote(name)})")]
                if mode
                else []
            )
            self._post += [
                _plain(line) for line in _put(name, target, directory=path.is_dir(), into=into)
            ]

    def _sources(self, word: str) -> Sequence[Path]:
        if self._files is not None and word.startswith(self._files[0]):
            return [self._files[1] / word.removeprefix(self._files[0])]
        return self._context.find(word)

    def _stage(self, path: Path) -> str:
        self._copies += 1
        copy = self._payload / str(self._copies) / (path.name or "tree")
        self._context.copy(path, copy)
        return f"{_WORK}/{copy.parent.name}/{copy.name}"


def _put(name: str, target: str, *, directory: bool, into: bool) -> tuple[str, str]:
    """Return the commands that copy a file, or the contents of a directory, to its target."""
    source = shlex.quote(name)
    place = shlex.quote(target.rstrip("/") or "/")
    if directory:
        keep = f"m=$(stat -c %a {place}) && cp -RPp {source}/. {place}/ && chmod $m {place}"
        return f"mkdir -p {place}", keep
    if into:
        return f"mkdir -p {place}", f"cp -p {source} {place}/"
    return f"mkdir -p {shlex.quote(posixpath.dirname(target))}", f"cp -p {source} {place}"


def _split(rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError:
        _refuse(rest, "a quote is not closed")


def _rendered(value: Value) -> str:
    """Return a value for a shell: text and variables in double quotes, and the placeholders of
    given arguments.
    """
    groups: list[str] = []
    for is_given, parts in groupby(
        value, lambda part: isinstance(part, Reference) and part.operator == GIVEN
    ):
        if is_given:
            groups += [f"{{{{ {part.name} }}}}" for part in parts if isinstance(part, Reference)]
        else:
            groups.append(_plain(quoted(tuple(parts), _OF_A_SHELL), '""'))
    return "".join(groups) or '""'


def _plain(line: str, quotes: str = "''") -> str:
    """Return a line of a script with quotes between two opening braces: Apptainer reads ``{{`` as a
    build argument.
    """
    return re.sub(r"\{(?=\{)", "{" + quotes, line)


def _refuse(value: str, allowed: str) -> NoReturn:
    raise SpecError(
        "Containerfile", os.fspath(value), f"{allowed} (or build it with Podman or Docker)"
    )
