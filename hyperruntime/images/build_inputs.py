"""Digests of what a build reads, for names of images that are built again when their inputs
change.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hyperruntime.errors import SpecError
from hyperruntime.images.building.sources import fitting
from hyperruntime.images.dockerfile import (
    Instruction,
    json_words,
    mount_fields,
    parse_dockerfile,
    read_dockerfile,
    split_flags,
)

# Part of each digest. Raise it when the same recipe then gives another image: with every change of
# the checks, of the definition files and Containerfiles that are made from recipes, or of what is
# translated for older builders.
TRANSLATION = 3
_DIGITS = 16
_EVERYTHING = "."
_UNSURE = set("$\\\"'")  # names with variables or quotes can mean any file


def dockerfile_digest(dockerfile: Path, context: Path) -> str:
    """Return a digest of a Dockerfile and of the files of its context that its instructions name.

    Other files of the context, such as logs beside the Dockerfile, do not count. A file that
    ``.dockerignore`` excludes counts if an instruction names it or its directory.

    Args:
        dockerfile: the file.
        context: directory that the build copies from.

    Raises:
        SpecError: a file cannot be read, or the Dockerfile is invalid.
    """
    try:
        text = read_dockerfile(dockerfile)
        names = {name for each in parse_dockerfile(text) for name in _sources(each)}
        ignores = [".dockerignore", f"{dockerfile.name}.dockerignore"] if names else []
        found = {path for name in (*names, *ignores) for path in _matches(context, name)}
        return inputs_digest(text, context, found)
    except OSError as error:
        raise SpecError(
            "containerfile", str(dockerfile), f"it and its context must be readable ({error})"
        ) from error


def inputs_digest(text: str, folder: Path, paths: Iterable[Path]) -> str:
    """Return a digest of a recipe's text, of files and links with their names, modes and sizes, and
    of ``TRANSLATION``.

    For a file that this user may not read, only the name, mode and size count.

    Args:
        text: the text.
        folder: directory that the names are relative to.
        paths: the files and links; other kinds are ignored.

    Raises:
        OSError: a file cannot be read for another reason.
    """
    found = hashlib.sha256(b"%d\0" % TRANSLATION)
    found.update(text.encode(errors="surrogateescape"))
    for path in sorted(paths):
        name = os.fsencode(path.relative_to(folder))
        if path.is_symlink():
            found.update(b"l %s %s\0" % (name, os.fsencode(path.readlink())))
        if path.is_file():  # a build follows links that an instruction names
            status = path.stat()
            found.update(b"f %s %o %d\0" % (name, status.st_mode & 0o777, status.st_size))
            # the build fails if it reads it
            with suppress(PermissionError), path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:_DIGITS]


def _sources(instruction: Instruction) -> Iterator[str]:
    """Yield the names of the context's files that an instruction reads, with patterns as in the
    Dockerfile.
    """
    flags, rest = split_flags(instruction.rest)
    if instruction.name == "RUN":
        mounts = [mount_fields(flag) for flag in flags if flag.startswith("--mount=")]
        binds = [
            mount for mount in mounts if mount.get("type", "bind") == "bind" and "from" not in mount
        ]
        yield from (mount.get("source", _EVERYTHING) for mount in binds)
    if instruction.name in ("COPY", "ADD") and not any(
        flag.startswith("--from=") for flag in flags
    ):
        words = json_words(rest) or rest.split()
        yield from (word for word in words[:-1] if not word.startswith("<<"))


def _matches(context: Path, name: str) -> Iterator[Path]:
    """Yield the files that a name of an instruction can mean, and those in directories."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or _UNSURE & set(name):
        parts = []
    for found in fitting(context, "/".join(parts), hidden=True) if parts else (context,):
        yield from found.rglob("*") if found.is_dir() else (found,)
