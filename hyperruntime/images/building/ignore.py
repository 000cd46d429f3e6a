"""Which files of a build context ``.dockerignore`` leaves out.

Patterns are rooted at the context, the last one that fits counts, and one that fits a directory
fits all below. Source: the Dockerfile reference of docs.docker.com, ".dockerignore files"; where it
is silent, the behaviour of BuildKit 0.29.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

from hyperruntime.errors import SpecError
from hyperruntime.images.words import pattern


def ignore_file(context: Path, dockerfile: Path) -> Path | None:
    """Return the file with the patterns for a build: ``NAME.dockerignore`` beside the Dockerfile
    comes first.
    """
    own = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    names = (own, context / ".containerignore", context / ".dockerignore")
    return next((name for name in names if name.is_file()), None)


class Ignored:
    """The patterns of an ignore file."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Read patterns.

        Raises:
            SpecError: a pattern is malformed.
        """
        self._rules: list[tuple[bool, re.Pattern[str]]] = []
        for line in lines:
            text = line.strip()
            if not text or line.startswith("#"):
                continue
            keeps = text.startswith("!")
            text = text[keeps:].strip()
            clean = posixpath.normpath(text).lstrip("/") if text else ""
            if clean == ".." or clean.startswith("../"):
                continue
            if not clean:
                raise SpecError(".dockerignore", line, "a pattern after !")
            if clean != ".":
                self._rules.append((keeps, re.compile(_regex(clean) + r"(?:/.*)?", re.DOTALL)))
        self.has_exceptions = any(keeps for keeps, _ in self._rules)

    @classmethod
    def of(cls, file: Path | None) -> Ignored:
        """Read an ignore file; None has no patterns."""
        text = "" if file is None else file.read_text("utf-8-sig", "surrogateescape")
        return cls(text.split("\n"))

    def excludes(self, path: str) -> bool:
        """Return whether a path, relative to the context, is left out."""
        return next(
            (not keeps for keeps, one in reversed(self._rules) if one.fullmatch(path)), False
        )


def _regex(clean: str) -> str:
    """Return the regular expression of a pattern; ``**`` fits any number of directories."""
    first, *parts = re.split(r"\*\*+", clean)
    found = pattern(first)
    for part in parts:
        found += "(?:.*/)?" if part.startswith("/") else ".*"
        found += pattern(part.removeprefix("/"))
    return found


def kept_files(context: Path, ignored: Ignored) -> dict[str, os.stat_result]:
    """Return what a build may read, with the facts: paths relative to the context, in order.

    Pipes, sockets and devices are left out. So are directories that are left out and have nothing
    that is kept.

    Raises:
        SpecError: a directory cannot be read.
    """
    found: dict[str, os.stat_result] = {}

    def walk(folder: str) -> bool:
        has_kept = False
        try:
            entries = sorted(os.scandir(context / folder), key=lambda one: one.name)
        except OSError as error:
            raise SpecError(
                "context", str(context / folder), f"it must be readable ({error})"
            ) from error
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            leaves_out = ignored.excludes(path)
            status = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                if leaves_out and not ignored.has_exceptions:
                    continue
                found[path] = status
                if walk(path) or not leaves_out:
                    has_kept = True
                else:
                    del found[path]
            elif not leaves_out and (entry.is_symlink() or entry.is_file()):
                found[path] = status
                has_kept = True
        return has_kept

    walk("")
    return found
