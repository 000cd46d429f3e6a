"""Decide which changes of an agent repository may enter a patch.

Paths are bytes, relative to the root of the repository, as git stores them.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import attrs

from hyperruntime.errors import PatchError
from hyperruntime.transfer import extract

FILE = b"100644"
PROGRAM = b"100755"
LINK = b"120000"
SUBMODULE = b"160000"
GONE = b"000000"
DEFAULT_MAX_FILE_BYTES = 10 * 1024 * 1024
DEFAULT_MAX_CHANGE_BYTES = 256 * 1024 * 1024

_NAMED = 5  # of the files of a change that is too large
_MAX_PATH_BYTES = 1024  # leaves room for the path of a clone: PATH_MAX is 4096
_SEPARATORS = re.compile(rb"[/\\]")
_DOT_GIT = re.compile(rb"(?i:\.git|git~1)[ .]*(?::.*)?", re.DOTALL)
_GIT_MODULES = re.compile(rb"(?i:\.gitmodules|gi[^~]*~[0-9]).*", re.DOTALL)
_REGION = re.compile(r"(?P<path>.+)#(?P<marker>[A-Z][A-Z0-9_-]*)", re.DOTALL)
_BYTECODE = (b".pyc", b".pyo")


@attrs.frozen
class Change:
    """The change of one path.

    Attributes:
        path: relative to the root of the repository.
        mode: git's mode of the new entry, or ``GONE`` for a deletion.
        blob: object name of the new content if ``data`` is None.
        data: the new content; None if it is in the object database already.
    """

    path: bytes
    mode: bytes
    blob: bytes = b""
    data: bytes | None = None


@attrs.frozen(kw_only=True)
class ChangeRules:
    """Rules for the changes of a patch.

    Attributes:
        protected: paths that no change may touch, with everything below them. ``**/NAME`` protects
            every path with a component of this name; ``NAME`` may hold ``*`` and ``?``.
            ``PATH#MARKER`` protects the lines of a file that are not between one with
            ``MARKER-START`` and one with ``MARKER-END``; these two lines are protected as well.
            A marker has capital letters, digits, ``-`` and ``_``; other names with ``#`` are paths.
        max_file_bytes: a new or changed file that is larger is left out.
        max_change_bytes: if the new and changed files are larger in all, the whole change is
            refused.
    """

    protected: Sequence[str] = ()
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES
    max_change_bytes: int = DEFAULT_MAX_CHANGE_BYTES

    @classmethod
    def without_sizes(cls, protected: Sequence[str] = ()) -> ChangeRules:
        """Return rules for changes that were accepted before: no limit on sizes."""
        return cls(protected=protected, max_file_bytes=sys.maxsize, max_change_bytes=sys.maxsize)

    def problem(self, path: bytes) -> str:
        """Return why a path may not change; empty if it may."""
        for name in self.protected:
            if _REGION.fullmatch(name):
                continue  # a part of a file: see markers()
            prefix = name.encode("utf-8", "surrogateescape").strip(b"/")
            pattern = prefix.removeprefix(b"**/")
            named = pattern != prefix and any(
                fnmatchcase(part, pattern) for part in path.split(b"/")
            )
            if named or path == prefix or path.startswith(prefix + b"/"):
                return f"{name} is protected"
        return "bytecode" if is_bytecode(path) else ""

    def markers(self, path: bytes) -> tuple[bytes, ...]:
        """Return the markers of the lines of a file that may change; empty if all may."""
        regions = filter(None, map(_REGION.fullmatch, self.protected))
        return tuple(found["marker"].encode() for found in regions if _is_file(found["path"], path))

    def size_problem(self, size: int) -> str:
        """Return why a file of ``size`` bytes is left out; empty if it is not."""
        over = size > self.max_file_bytes
        return (
            f"its {size} bytes are more than {self.max_file_bytes} (max_file_bytes)" if over else ""
        )

    def check_total(self, sizes: Mapping[bytes, int]) -> None:
        """Check the size of a whole change.

        Args:
            sizes: size in bytes of each new or changed file that is not left out.

        Raises:
            PatchError: the files are too large in all; it names the largest.
        """
        if (total := sum(sizes.values())) <= self.max_change_bytes:
            return
        largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:_NAMED]
        named = ", ".join(f"{os.fsdecode(path)!r} ({sizes[path]} bytes)" for path in largest)
        raise PatchError(
            f"the new and changed files have {total} bytes in all, more than "
            f"{self.max_change_bytes} (max_change_bytes); the largest are {named}"
        )


def _is_file(name: str, path: bytes) -> bool:
    """Return whether an entry of ``protected``, without its marker, names this file."""
    wanted = posixpath.normpath(name).lstrip("/").encode("utf-8", "surrogateescape")
    if wanted.startswith(b"**/"):
        return fnmatchcase(path.rpartition(b"/")[2], wanted.removeprefix(b"**/"))
    return path == wanted


def region_problem(marker: bytes, old: bytes | None, new: bytes | None) -> str:
    """Return why a file may not change in this way; empty if only lines between markers differ.

    Args:
        marker: ``MARKER`` of the file, as in :class:`ChangeRules`.
        old: its content before; None if it did not exist.
        new: its content afterwards; None if it is no regular file any more.
    """
    if old is None or new is None:
        return "the file is protected, it may not be made, removed or replaced"
    if _outside(marker, old) != _outside(marker, new):
        return f"a line outside of {marker.decode(errors='replace')} is protected"
    return ""


def _outside(marker: bytes, content: bytes) -> list[bytes]:
    """Return the lines that are not between markers, and the lines with the markers."""
    found = []
    inside = False
    for line in content.split(b"\n"):
        ends = marker + b"-END" in line
        if not inside or ends or marker + b"-START" in line:
            found.append(line)
        inside = not ends and (inside or marker + b"-START" in line)
    return found


def is_bytecode(path: bytes) -> bool:
    """Return whether a path is compiled Python, which is never part of a repository's state."""
    return path.endswith(_BYTECODE) or b"__pycache__" in path.split(b"/")


def escape_problem(path: bytes) -> str:
    """Return why a path is not allowed in a repository; empty if it is. At least as strict as git's
    own check.

    Source: git's ``verify_path`` with ``core.protectNTFS``.
    """
    if path.startswith(b"/"):
        return "an absolute path"
    parts = path.split(b"/")
    if b".." in parts:
        return "a path with .. in it"
    if not path or b"" in parts or b"." in parts or b"\0" in path:
        return "an invalid path"
    if any(_DOT_GIT.fullmatch(part) for part in _SEPARATORS.split(path)):
        return "a path into git's own files"
    return "a path that is too long" if len(path) > _MAX_PATH_BYTES else ""


def link_problem(path: bytes, target: bytes) -> str:
    """Return why a symbolic link may not be part of a repository; empty if it may.

    Args:
        path: path of the link.
        target: target of the link.
    """
    if any(_DOT_GIT.fullmatch(part) for part in _SEPARATORS.split(target)):
        return "a symbolic link into git's own files"
    if any(_GIT_MODULES.fullmatch(part) for part in _SEPARATORS.split(path)):
        return "a symbolic link with the name of a git file"
    return extract.link_problem(target, path.count(b"/"))


def effective_changes(changes: Iterable[Change], dropped: dict[bytes, str]) -> list[Change]:
    """Return the changes that are possible while every dropped path stays unchanged.

    A path that stays unchanged needs the directories above it: a new file cannot replace one of
    them. If it is a file, no new directory can replace it.

    Args:
        changes: the wanted changes.
        dropped: path to reason; every new or changed path that is not possible is added.
    """
    stays = set(dropped)
    left = [change for change in changes if change.path not in stays]
    while True:
        above = {ancestor for path in stays for ancestor in ancestors(path)}
        blocked = [
            change
            for change in left
            if (change.mode != GONE and change.path in above)
            or not stays.isdisjoint(ancestors(change.path))
        ]
        if not blocked:
            return sorted(left, key=lambda change: (change.mode != GONE, change.path))
        for change in blocked:
            stays.add(change.path)
            if change.mode != GONE:
                dropped[change.path] = "it conflicts with a path that stays unchanged"
        left = [change for change in left if change.path not in stays]


def ancestors(path: bytes) -> list[bytes]:
    """Return the directories above a path, from the top down."""
    parts = path.split(b"/")
    return [b"/".join(parts[:end]) for end in range(1, len(parts))]
