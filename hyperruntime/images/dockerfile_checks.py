"""Refuse the ways from a Dockerfile to the machine that builds it, with every engine.

A Dockerfile comes with a task or a repository that somebody else made. A base such as
``docker-archive:FILE`` makes Podman read any file of this machine. With ``RUN --mount``, Podman
before 4.9.4 gives a step any directory of this machine (CVE-2024-1753, CVE-2024-9675). Other
options of RUN give a step the network or the devices of this machine.

Source: the Dockerfile reference of docs.docker.com, "FROM", "RUN --mount", "RUN --network", "RUN
--security" and "Automatic platform ARGs".
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hyperruntime.errors import SpecError
from hyperruntime.host.owner import owned_directory
from hyperruntime.images.dockerfile import (
    Instruction,
    mount_fields,
    parse_dockerfile,
    read_dockerfile,
    refuse,
    split_flags,
    write_dockerfile,
)
from hyperruntime.images.dockerfile_bases import Bases, no, without_onbuild

_DIRECTIVE = re.compile(r"\s*#\s*(?P<name>escape|syntax)\s*=\s*(?P<value>\S*)", re.IGNORECASE)
_FRONTEND = re.compile(
    r"(docker\.io/)?docker/dockerfile(-upstream)?(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", re.ASCII
)
_PLAIN = re.compile(r"--[!#-&(-\[\]-_a-~]*")  # ASCII without blanks, quotes and backslashes
# `--` at the start of a word; builders that read bytes also split a word after one that is not of
# ASCII.
_LATE = re.compile(r"(?:^|[^!-~])[\"'\\]*--")
_INSTRUCTIONS = set(
    "ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL MAINTAINER ONBUILD "
    "RUN SHELL STOPSIGNAL USER VOLUME WORKDIR".split()
)
_OPTIONS = {
    "FROM": ("--platform=",),
    "COPY": ("--from=", "--chown=", "--chmod=", "--link", "--link=", "--parents", "--parents=", "--exclude="),
    "ADD": (
        "--chown=", "--chmod=", "--link", "--link=", "--checksum=", "--keep-git-dir", "--keep-git-dir=", "--exclude=",
    ),
}  # fmt: skip
_FROM = "--from="
_IGNORES = (".dockerignore", ".containerignore")
_SAFE_OPTIONS = ("--network=none", "--network=default")
_NOTHING = {"type", "required", "id", "target", "mode", "uid", "gid", "env"}
# The fields of a mount that cannot name a file of this machine, by its type; this library passes no
# secret.
_SAFE = {
    "bind": {"type", "target", "source", "ro"},
    "cache": {"type", "target", "id", "ro", "sharing", "mode", "uid", "gid"},
    "tmpfs": {"type", "target", "size"},
    "secret": _NOTHING,
    "ssh": _NOTHING,
}


@contextmanager
def checked_dockerfile(
    dockerfile: Path,
    context: Path,
    build_args: Mapping[str, str],
    full_name: Callable[[str], str] = str,
) -> Iterator[Path]:
    """Yield a Dockerfile that reads nothing of this machine outside its context: the file, or a
    safe copy of it.

    Args:
        dockerfile: the file.
        context: the build context.
        build_args: values for ``ARG``.
        full_name: returns what to write in FROM for the name of an image.

    Raises:
        SpecError: the file names a base that is not the name of an image, mounts what may lie
            outside the context, has an option that is not allowed, or could be read in two ways.
    """
    if dockerfile.suffix == ".in":
        raise SpecError(
            "containerfile",
            str(dockerfile),
            "its name must not end with .in: Podman would run cpp on it",
        )
    own = [dockerfile.with_name(dockerfile.name + name) for name in _IGNORES]
    for file in (
        *own,
        *(context / name for name in _IGNORES),
        *(context / one.name for one in own),
    ):
        _check_ignore_file(file, context)
    text = read_dockerfile(dockerfile)
    checked = check_dockerfile(text, context, build_args, full_name)
    if checked == text:
        yield dockerfile
        return
    with owned_directory() as directory:
        copy = Path(directory) / dockerfile.name
        write_dockerfile(copy, checked)
        for file in own:
            if file.exists():
                shutil.copyfile(file, copy.with_name(file.name))
        yield copy


def _check_ignore_file(file: Path, context: Path) -> None:
    """Check that the patterns of what a build leaves out are no other file of this machine.

    Raises:
        SpecError: the file is a link to the outside, or no regular file.
    """
    if os.path.lexists(file):
        real = Path(os.path.realpath(file))  # `resolve` fails on links that lead to each other
        if not real.is_file() or (
            file.is_symlink() and not real.is_relative_to(os.path.realpath(context))
        ):
            raise SpecError("containerfile", str(file), "it must be a file of the build context")


def check_dockerfile(
    text: str,
    context: Path,
    build_args: Mapping[str, str],
    full_name: Callable[[str], str] = str,
) -> str:
    """Return the text of a Dockerfile that every builder reads alike.

    Each cache mount has an own identifier, which is not a path. Bases are names: their variables
    have their values.

    Args:
        text: the text.
        context: the build context.
        build_args: values for ``ARG``.
        full_name: returns what to write in FROM for the name of an image.

    Raises:
        SpecError: see :func:`checked_dockerfile`.
    """
    _check_directives(text)
    bases = Bases(build_args, full_name)
    return "".join(_checked(each, bases, context) for each in parse_dockerfile(text))


def check_triggers(base: str, triggers: Sequence[str], context: Path) -> None:
    """Check what an image does in the build of an image from it (ONBUILD), as if the Dockerfile
    said so.

    Args:
        base: the image.
        triggers: its instructions.
        context: the build context.

    Raises:
        SpecError: they could reach this machine.
    """
    try:
        text = "\n".join(triggers)
        is_safe = "<<" not in text and check_dockerfile(text, context, {}) == text
    except SpecError:
        is_safe = False
    if not is_safe:
        allowed = "the base must have no trigger (ONBUILD) that can reach this machine"
        raise SpecError("Containerfile", f"FROM {base}", allowed)


def _checked(each: Instruction, bases: Bases, context: Path) -> str:
    """Return the source of an instruction, changed where builders could read it in two ways.

    Raises:
        SpecError: see :func:`checked_dockerfile`.
    """
    before, name, rest = without_onbuild(each)
    if name and name not in _INSTRUCTIONS:
        no(each, f"{name!r} must be an instruction of Dockerfiles")
    flags, text = split_flags(rest)
    if not text[:1].isprintable():  # a blank for some builders, also a byte that is not UTF-8
        no(each, f"{text[:1]!r} must not follow the options")
    checked = [_checked_option(each, name, flag, context) for flag in flags]
    if name in _OPTIONS and _LATE.search(text):
        no(each, "no word after the options may start with --; write ./--NAME")
    for flag in flags:
        if flag.startswith(_FROM):
            bases.check(each, flag.removeprefix(_FROM))
    new = bases.begin(each, text) if name == "FROM" else text
    if name == "ARG":
        try:
            bases.assign(text)
        except SpecError as error:
            no(each, error.allowed)
    return (
        each.source
        if (checked, new) == (flags, text)
        else _rewritten(each, [f"{before}{name}", *checked, new])
    )


def _rewritten(each: Instruction, words: list[str]) -> str:
    """Return the source of an instruction in one line; the numbers of later lines stay."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", each.source)
    bodies = sum(heredoc.content.count("\n") + 1 for heredoc in each.heredocs)
    head = len(lines) - bodies
    end = "\n" if lines[head - 1].endswith("\n") else ""
    return " ".join(words) + end + "".join(lines[head:]) + "\n" * (head - 1)


def _check_directives(text: str) -> None:
    """Check that the first comments change neither how lines are read nor the program that reads
    them.

    Raises:
        SpecError: they do.
    """
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        found = _DIRECTIVE.match(line)
        if found and found["name"].lower() == "escape" and found["value"] != "\\":
            refuse(number, line, "the escape character must be a backslash")
        if found and found["name"].lower() == "syntax" and not _FRONTEND.fullmatch(found["value"]):
            refuse(number, line, "the syntax must be that of docker/dockerfile")


def _checked_option(instruction: Instruction, name: str, flag: str, context: Path) -> str:
    """Return an option of an instruction; see :func:`_checked_mount`.

    Raises:
        SpecError: it is of RUN, and none of ``--mount=``, ``--network=none`` and
            ``--network=default``; or it is of FROM, COPY or ADD, and unknown.
    """
    if name == "RUN":
        if flag.startswith("--mount="):
            return _checked_mount(instruction, flag, context)
        if flag not in _SAFE_OPTIONS:
            no(
                instruction,
                f"RUN may not have {flag!r}; allowed are --mount=, {' and '.join(_SAFE_OPTIONS)}",
            )
    plain, equals, _ = flag.partition("=")
    if name in _OPTIONS and plain + equals not in _OPTIONS[name]:
        no(instruction, f"{name} may not have {flag!r}; allowed are {', '.join(_OPTIONS[name])}")
    if not _PLAIN.fullmatch(flag):
        no(instruction, f"the option {flag!r} must be plain text without quotes and backslashes")
    return flag


def _checked_mount(instruction: Instruction, flag: str, context: Path) -> str:
    """Return a ``--mount`` that can mount only files of the context, and nothing of other builds by
    their paths.

    Raises:
        SpecError: the mount may lead elsewhere.
    """

    def refused(why: str) -> None:
        no(instruction, f"{why}; copy the files with COPY")

    parts = flag.partition("=")[2].split(",")
    fields = mount_fields(flag)
    kind = fields.get("type", "bind").lower()
    if len(fields) < len(parts):  # builders differ in which one counts
        refused("a mount must name each field once")
    if "$" in flag or not _PLAIN.fullmatch(flag):
        refused("a mount may contain no variables and no quotes, and only ASCII")
    if odd := sorted(set(fields) - _SAFE.get(kind, set())):
        refused(f"a mount of type {kind} may not have {', '.join(odd)}")
    if fields.get("ro", "") not in ("", "true"):
        refused("a mount must be read-only")
    inside = Path(os.path.realpath(context / fields.get("source", "").lstrip("/")))
    if kind == "bind" and not inside.is_relative_to(os.path.realpath(context)):
        refused("a mount must lie in the build context, also by its links")
    if kind != "cache":
        return flag
    own = hashlib.sha256(fields.get("id", fields.get("target", "")).encode()).hexdigest()[:16]
    kept = [part for part in parts if part.partition("=")[0].lower() != "id"]
    return f"--mount={','.join([*kept, f'id={own}'])}"
