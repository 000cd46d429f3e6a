"""Find what the sources of ``COPY`` mean in a tree, whose links are followed inside it."""

from __future__ import annotations

import errno
import glob
import os
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hyperruntime.errors import SpecError
from hyperruntime.images.words import pattern

_MOST_FOLDERS = 10_000  # that fit a pattern; links to directories above multiply them
_MOST_FOUND = 1_000_000
_MOST_STEPS = 4096


class Found(NamedTuple):
    """A file or directory of a tree.

    Attributes:
        name: the last component of its path as it was asked for, "" for the root.
        path: its path below the root, without links.
    """

    name: str
    path: str


def resolve(root: str, path: str, *, last: bool = True) -> str:
    """Return a path below a root without links; what does not exist stays as it is.

    Args:
        root: the directory that ``/`` of links means.
        path: the path.
        last: whether a link at the end is followed.

    Raises:
        OSError: the links have no end.
    """
    done: list[str] = []
    left = path.split("/")[::-1]
    for _ in range(_MOST_STEPS):
        if not left:
            return "/".join(done)
        name = left.pop()
        if name == "..":
            done = done[:-1]
        elif name not in ("", "."):
            try:
                link = os.readlink("/".join((root, *done, name))) if left or last else ""
            except OSError:
                link = ""
            done = [] if link.startswith("/") else done if link else [*done, name]
            left += link.split("/")[::-1] if link else []
    raise OSError(errno.ELOOP, f"{path} has too many links")


def find(root: str, source: str, kept: Collection[str] | None) -> list[Found]:
    """Return what a source means, in order; nothing if it does not exist.

    Args:
        root: the tree.
        source: a path, or a pattern of Go's ``path.Match``.
        kept: the paths that there are; None means all.

    Raises:
        OSError: links have no end.
        SpecError: the pattern is malformed, or too many paths fit.
    """
    clean = posixpath.normpath(f"/{source}").strip("/")
    names = [""]
    parts = clean.split("/") if clean else []
    for index, part in enumerate(parts):
        if not is_pattern(part):
            names = [posixpath.join(name, part) for name in names]
            continue
        wanted = re.compile(pattern(part), re.DOTALL)
        below = []
        for name in names:
            folder = resolve(root, name) if name else ""
            below += [
                posixpath.join(name, one)
                for one in children(root, folder, kept)
                if wanted.fullmatch(one)
            ]
            _check_count(source, below, index + 1 < len(parts))
        names = below
    found = []
    for name in names:
        path = resolve(root, name)
        if os.path.lexists(f"{root}/{path}") and (kept is None or not path or path in kept):
            found.append(Found(posixpath.basename(name), path))
        elif is_pattern(clean):
            raise OSError(errno.ENOENT, f"{name} is a link to nothing")
    return found


def fitting(folder: Path, source: str, *, hidden: bool = False) -> list[Path]:
    """Return the paths that fit a path with wildcards of the shell, in order.

    Args:
        folder: directory that the path is relative to.
        source: the path.
        hidden: whether a wildcard fits the dot at the start of a name.

    Raises:
        SpecError: too many fit.
    """
    found = [folder]
    parts = Path(source).parts
    for index, part in enumerate(parts):
        below: list[Path] = []
        for one in found:
            names = glob.glob(part, root_dir=one, include_hidden=hidden)
            below += [one / name for name in sorted(names)]
            _check_count(source, below, index + 1 < len(parts))
        found = below
    return found


def _check_count(source: str, found: Sequence[object], are_folders: bool) -> None:
    most = _MOST_FOLDERS if are_folders else _MOST_FOUND
    if len(found) > most:
        what = "directories" if are_folders else "files"
        raise SpecError("source", source, f"at most {most} {what} may fit a part of it")


def is_pattern(text: str) -> bool:
    """Return whether a source has a wildcard or an escape."""
    return any(letter in text for letter in "*?[\\")


def children(root: str, folder: str, kept: Collection[str] | None) -> Iterator[str]:
    """Yield the names of what is in a directory, in order; nothing if it is none."""
    path = f"{root}/{folder}"
    if os.path.isdir(path) and not os.path.islink(path.rstrip("/")):
        for name in sorted(os.listdir(path)):
            if kept is None or posixpath.join(folder, name) in kept:
                yield name
