"""Convert Containerfiles to definition files, for machines whose only engine is Apptainer.

A Containerfile may have one stage. Its steps run in the shell, directory and variables that it sets. Instructions
for the start of a container (``CMD``, ``EXPOSE``, ...) are skipped, because the caller gives the command. Other
instructions that are not supported raise SpecError.

Source: the Dockerfile reference of docs.docker.com.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.dockerfile import json_words, parse_dockerfile, read_dockerfile
from hyperruntime.images.environment_script import parse_assignments, quoted
from hyperruntime.images.heredocs import without_heredocs
from hyperruntime.images.pull_errors import is_local

_WORK, _PAYLOAD = "/.hyperruntime-build", "payload"
_HEREDOCS = ".hyperruntime-heredocs"
_FOR_THE_START = ("CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "MAINTAINER", "STOPSIGNAL", "VOLUME")
_OF_A_SHELL = '"\\$`'
_ROOT = ("root", "0", "root:root", "0:0")
_CHMOD = re.compile(r"--chmod=([0-7]{3,4})\s+")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@attrs.frozen(kw_only=True)
class Converted:
    """A converted Containerfile.

    Attributes:
        path: the definition file.
        workdir: working directory of the image's commands.
        build_args: values for the placeholders of the definition file, which an image must not keep.
    """

    path: Path
    workdir: str
    build_args: Mapping[str, str]


@contextmanager
def definition_of(
    containerfile: Path, context: Path, build_args: Mapping[str, str], is_here: Callable[[str], bool]
) -> Iterator[Converted]:
    """Yield a definition file that builds the same image as a Containerfile.

    The ``%files`` of the definition file are relative to its directory.

    Args:
        containerfile: the file to convert.
        context: directory that ``COPY`` and ``ADD`` copy from.
        build_args: values for ``ARG``.
        is_here: returns whether an image is on this machine already.

    Raises:
        SpecError: the Containerfile uses an unsupported instruction or form.
    """
    with owned_directory() as directory:
        folder = Path(directory) / "build"
        (folder / _PAYLOAD).mkdir(parents=True)
        if re.match(r"\s*#\s*escape\s*=", read_dockerfile(containerfile), re.IGNORECASE):
            _refuse("# escape", "the escape character must be a backslash")
        with without_heredocs(containerfile, build_args, f"{_HEREDOCS}/") as (plain, files):
            maker = _Maker(context.resolve(), folder / _PAYLOAD, build_args, is_here, files)
            for instruction in parse_dockerfile(read_dockerfile(plain)):
                if instruction.name:
                    maker.take(instruction.name, instruction.rest)
        text = maker.text()
        if not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text):
            _refuse(os.fspath(containerfile), "the file must be UTF-8")
        (folder / "container.def").write_text(text)
        yield Converted(path=folder / "container.def", workdir=maker.workdir, build_args=maker.secrets)


class _Maker:
    """Collects the parts of a definition file.

    Attributes:
        workdir: working directory of the next step.
        secrets: given build arguments, quoted for a shell.
    """

    def __init__(
        self,
        context: Path,
        payload: Path,
        build_args: Mapping[str, str],
        is_here: Callable[[str], bool],
        heredocs: Path | None,
    ) -> None:
        self.workdir = "/"
        self.secrets: dict[str, str] = {}
        self._heredocs = heredocs
        self._is_here = is_here
        self._context, self._payload, self._given = context, payload, build_args
        self._base = ""
        self._arguments: dict[str, str] = {}
        self._shell = ["/bin/sh", "-c"]
        self._post: list[str] = []
        self._environment: list[str] = []
        self._labels: list[str] = []
        self._copies = 0

    def take(self, instruction: str, rest: str) -> None:
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
        if not self._base and instruction not in ("FROM", "ARG"):
            _refuse(instruction, "FROM must come first")
        method(rest)

    def text(self) -> str:
        """Return the text of the definition file."""
        if not self._base:
            _refuse("no FROM", "the file must have FROM and an image")
        kind = "localimage" if is_local(self._base) or self._is_here(self._base) else "docker"
        parts = [f"Bootstrap: {kind}\nFrom: {self._base}\n"]
        if self._copies:
            parts.append(f"%files\n    {_PAYLOAD} {_WORK}\n")
        parts.append("%post\n" + "".join(f"    {line}\n" for line in self._post))
        parts.append(f"    rm -rf {_WORK}\n")
        if self._environment:
            parts.append("%environment\n" + "".join(f"    {line}\n" for line in self._environment))
        if self._labels:
            parts.append("%labels\n" + "".join(f"    {line}\n" for line in self._labels))
        return "\n".join(parts)

    def _take_from(self, rest: str) -> None:
        words = [word for word in rest.split() if not word.startswith("--platform")]
        if self._base:
            _refuse(f"FROM {rest}", "only one stage is supported")
        if not words or words[0] == "scratch" or (len(words) != 1 and words[1].lower() != "as"):
            _refuse(f"FROM {rest}", "FROM must name an image")
        self._base = _VARIABLE.sub(lambda found: self._arguments.get(found[1], ""), words[0])

    def _take_arg(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        name = name.strip()
        value = self._given.get(name, default.strip("\"'"))
        self._arguments[name] = value
        if self._base and name in self._given and re.fullmatch(r"\w+", name, re.ASCII):
            self.secrets[name] = _plain(shlex.quote(value))
            self._post.append(f"export {name}={{{{ {name} }}}}")
        elif self._base:
            self._post.append(_plain(f"export {name}={shlex.quote(value)}"))

    def _take_env(self, rest: str) -> None:
        name, blank, value = rest.partition(" ")
        script = f"export {rest}" if "=" in name or not blank else f"export {name}={shlex.quote(value.strip())}"
        values = parse_assignments(script)
        lines = [_plain(f"export {name}={quoted(value, _OF_A_SHELL)}", '""') for name, value in values.items()]
        self._post += lines
        self._environment += lines

    def _take_label(self, rest: str) -> None:
        for word in _split(rest):
            name, _, value = word.partition("=")
            self._labels.append(_plain(f"{name} {value}".replace("\n", " ")))

    def _take_shell(self, rest: str) -> None:
        self._shell = json_words(rest) or _refuse(f"SHELL {rest}", 'SHELL must be a list such as ["/bin/bash", "-c"]')

    def _take_user(self, rest: str) -> None:
        if rest not in _ROOT:
            _refuse(f"USER {rest}", "the user must be root; Apptainer images have no user")

    def _take_workdir(self, rest: str) -> None:
        if "$" in rest:
            _refuse(f"WORKDIR {rest}", "the path must not contain variables")
        self.workdir = posixpath.normpath(posixpath.join(self.workdir, rest.strip("\"'")))
        self._post += [_plain(f"{verb} {shlex.quote(self.workdir)}") for verb in ("mkdir -p", "cd")]

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
        plain = rest[option.end() :] if option else rest
        words = json_words(plain) or _split(plain)
        if len(words) < 2 or words[0].startswith("--") or "$" in plain:
            _refuse(f"COPY {rest}", "write sources and a target without variables; the only option is --chmod=NUMBER")
        target = posixpath.normpath(posixpath.join(self.workdir, words[-1]))
        found = [path for word in words[:-1] for path in self._sources(word)]
        into = words[-1].endswith(("/", "/.")) or words[-1] in (".", "..") or len(found) > 1
        for path in found:
            name = self._stage(path, int(option[1], 8) if option else None)
            self._post += [_plain(line) for line in _put(name, target, directory=path.is_dir(), into=into)]

    def _sources(self, word: str) -> list[Path]:
        if self._heredocs is not None and word.startswith(f"{_HEREDOCS}/"):
            return [self._heredocs / word.removeprefix(f"{_HEREDOCS}/")]
        pattern = word.lstrip("/") or "."
        found = [self._context / name for name in sorted(glob.glob(pattern, root_dir=self._context))]
        if not found:
            _refuse(f"COPY {word}", f"the source does not exist in {self._context}")
        for path in found:
            if not path.resolve().is_relative_to(self._context):
                _refuse(f"COPY {word}", "the source must be in the build context")
        return found

    def _stage(self, path: Path, mode: int | None) -> str:
        self._copies += 1
        copy = self._payload / str(self._copies) / (path.resolve().name or "tree")
        copy.parent.mkdir()
        if path.is_dir():
            shutil.copytree(path, copy, symlinks=True)
        else:
            shutil.copy2(path, copy)
        if mode is not None:
            for made in (copy, *copy.rglob("*")):
                if not made.is_symlink():
                    made.chmod(mode)
        return f"{_WORK}/{copy.parent.name}/{copy.name}"


def _put(name: str, target: str, *, directory: bool, into: bool) -> tuple[str, str]:
    """Return the commands that copy a file, or the contents of a directory, to its target."""
    source, place = shlex.quote(name), shlex.quote(target.rstrip("/") or "/")
    if directory:
        return f"mkdir -p {place}", f"cp -RPp {source}/. {place}/"
    if into:
        return f"mkdir -p {place}", f"cp -p {source} {place}/"
    return f"mkdir -p {shlex.quote(posixpath.dirname(target))}", f"cp -p {source} {place}"


def _split(rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError:
        _refuse(rest, "a quote is not closed")


def _plain(line: str, quotes: str = "''") -> str:
    """Return a line of a script with quotes between two opening braces: Apptainer reads ``{{`` as a build argument."""
    return re.sub(r"\{(?=\{)", "{" + quotes, line)


def _refuse(value: str, allowed: str) -> NoReturn:
    raise SpecError("Containerfile", os.fspath(value), f"{allowed} (or build it with Podman or Docker)")
