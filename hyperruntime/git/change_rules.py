"""Say which changes of an agent repository may enter a patch.

Paths are bytes relative to the repository's root, as git stores them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import attrs

from hyperruntime.transfer import link_check as links

FILE, PROGRAM, LINK, SUBMODULE = b"100644", b"100755", b"120000", b"160000"
GONE = b"000000"
DEFAULT_MAX_FILE_BYTES = 10 * 1024 * 1024

_MAX_PATH_BYTES = 1024  # a clone's own directory comes before it, and 4096 is the end
_SEPARATORS = re.compile(rb"[/\\]")
_DOT_GIT = re.compile(rb"(?i:\.git|git~1)[ .]*(?::.*)?", re.DOTALL)
_GIT_MODULES = re.compile(rb"(?i:\.gitmodules|gi[^~]*~[0-9]).*", re.DOTALL)
_BYTECODE = (b".pyc", b".pyo")


@attrs.frozen
class Change:
    """What happens to one path.

    Attributes:
        path: the path.
        mode: git's mode of the new entry, or ``GONE``.
        blob: object name of the new content, where it is in the object database already.
        data: the new content, where it is not.
    """

    path: bytes
    mode: bytes
    blob: bytes = b""
    data: bytes | None = None


@attrs.frozen(kw_only=True)
class ChangeRules:
    """What may not change.

    Attributes:
        protected: paths that no change may touch, with all that is below them; ``**/NAME``, which may hold ``*`` and
            ``?``, is whatever has this name, anywhere.
        max_file_bytes: a larger new or changed file is left out.
    """

    protected: Sequence[str] = ()
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES

    def problem(self, path: bytes) -> str:
        """Return why a path may not change, or nothing."""
        for name in self.protected:
            prefix = name.encode("utf-8", "surrogateescape").strip(b"/")
            pattern = prefix.removeprefix(b"**/")
            named = pattern != prefix and any(fnmatchcase(part, pattern) for part in path.split(b"/"))
            if named or path == prefix or path.startswith(prefix + b"/"):
                return f"{name} is protected"
        return "bytecode" if is_bytecode(path) else ""

    def size_problem(self, size: int) -> str:
        """Return why a file of this size is left out, or nothing."""
        over = size > self.max_file_bytes
        return f"its {size} bytes are more than {self.max_file_bytes} (max_file_bytes)" if over else ""


def is_bytecode(path: bytes) -> bool:
    """Tell whether a path is what Python compiles, which is never part of a repository's state."""
    return path.endswith(_BYTECODE) or b"__pycache__" in path.split(b"/")


def escape_problem(path: bytes) -> str:
    """Return why a path is none inside a repository, or nothing; as strict as git's own check, or stricter.

    Source: git's ``verify_path`` with ``core.protectNTFS``.
    """
    if path.startswith(b"/"):
        return "an absolute path"
    parts = path.split(b"/")
    if b".." in parts:
        return "a path with .. in it"
    if not path or b"" in parts or b"." in parts or b"\0" in path:
        return "no usable path"
    if any(_DOT_GIT.fullmatch(part) for part in _SEPARATORS.split(path)):
        return "a path into git's own files"
    return "a path that is too long" if len(path) > _MAX_PATH_BYTES else ""


def link_problem(path: bytes, target: bytes) -> str:
    """Return why a symbolic link may not be part of a repository, or nothing."""
    if any(_DOT_GIT.fullmatch(part) for part in _SEPARATORS.split(target)):
        return "a symbolic link into git's own files"
    if any(_GIT_MODULES.fullmatch(part) for part in _SEPARATORS.split(path)):
        return "a symbolic link in place of a file of git's"
    return links.link_problem(target, path.count(b"/"))


def settle(changes: Iterable[Change], dropped: dict[bytes, str]) -> list[Change]:
    """Return the changes that can be made while every dropped path stays as it was; add those that cannot.

    What stays keeps the directories above it and all below it: a new file may not stand in place of such a
    directory, nor a new directory in place of a file.
    """
    stays = set(dropped)
    left = [change for change in changes if change.path not in stays]
    while True:
        above = {ancestor for path in stays for ancestor in ancestors(path)}
        blocked = [
            change
            for change in left
            if (change.mode != GONE and change.path in above) or not stays.isdisjoint(ancestors(change.path))
        ]
        if not blocked:
            return sorted(left, key=lambda change: (change.mode != GONE, change.path))
        for change in blocked:
            stays.add(change.path)
            if change.mode != GONE:
                dropped[change.path] = "something that stays as it was has its place"
        left = [change for change in left if change.path not in stays]


def ancestors(path: bytes) -> list[bytes]:
    """Return the directories above a path."""
    parts = path.split(b"/")
    return [b"/".join(parts[:end]) for end in range(1, len(parts))]
