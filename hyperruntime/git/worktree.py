"""Compare a directory that a container wrote with a commit; nothing in the directory is trusted.

The directory's own ``.git`` is ignored. Every path is opened component by component, without
following links, because the container may still write: a path component that becomes a link is an
error.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from hyperruntime.concurrency.closing import Closing, closing_descriptor
from hyperruntime.errors import PatchError
from hyperruntime.git.change_rules import (
    FILE,
    GONE,
    LINK,
    PROGRAM,
    SUBMODULE,
    Change,
    ChangeRules,
    effective_changes,
    escape_problem,
    is_bytecode,
    link_problem,
)
from hyperruntime.storage.run_files import open_below
from hyperruntime.transfer.tar_writer import SPECIAL

MAX_ENTRIES = 300_000

_MAX_DEPTH = 100
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@attrs.frozen
class Entry:
    """A path in a commit.

    Attributes:
        mode: git's mode.
        blob: object name of its content.
        size: bytes of its content; 0 for a submodule.
    """

    mode: bytes
    blob: bytes
    size: int


@attrs.frozen
class Found:
    """A path in the directory.

    Attributes:
        mode: git's mode.
        size: bytes of its content, as reported by ``lstat``.
        link: target of a symbolic link.
    """

    mode: bytes
    size: int
    link: bytes = b""


class WorkTree(Closing):
    """A directory and the entries found in it.

    Attributes:
        found: files and links by path, without bytecode and the top-level ``.git``.
        problems: path to the reason why it cannot be part of a commit.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Scan every entry below ``root``.

        Raises:
            OSError: ``root`` is not a directory, or cannot be read.
            PatchError: it holds more than ``MAX_ENTRIES`` entries.
        """
        self.found: dict[bytes, Found] = {}
        self.problems: dict[bytes, str] = {}
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._scan(self._root, b"", 0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the directory."""
        os.close(self._root)

    def read(self, path: bytes, limit: int) -> bytes:
        """Return the first ``limit`` + 1 bytes of a file, so that the caller can see that it is
        larger.

        Args:
            path: relative to the directory.
            limit: in bytes.

        Raises:
            OSError: the file does not exist, cannot be read, is not a regular file, or its path
                contains a link.
        """
        with os.fdopen(open_below(self._root, path.split(b"/")), "rb", buffering=0) as file:
            pieces = []
            left = limit + 1
            while left > 0 and (piece := file.read(min(left, 1 << 20))):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)

    def _scan(self, directory: int, prefix: bytes, depth: int) -> None:
        for name in sorted(map(os.fsencode, os.listdir(directory))):
            path = prefix + name
            if path == b".git" or is_bytecode(path):
                continue
            if len(self.found) + len(self.problems) >= MAX_ENTRIES:
                raise PatchError(
                    f"the agent's directory holds more than {MAX_ENTRIES} files; keep data "
                    "outside of it"
                )
            try:
                self._look(directory, name, path, depth)
            except FileNotFoundError:
                continue  # removed during the scan
            except OSError as error:
                self.problems[path] = f"it cannot be read: {error.strerror}"

    def _look(self, directory: int, name: bytes, path: bytes, depth: int) -> None:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = stat.S_IFMT(info.st_mode)
        if problem := escape_problem(path) or (
            kind in SPECIAL and f"{SPECIAL[kind]} cannot be stored"
        ):
            self.problems[path] = problem
        elif kind == stat.S_IFLNK:
            link = os.readlink(name, dir_fd=directory)
            self.found[path] = Found(LINK, len(link), link)
        elif kind == stat.S_IFREG:
            self.found[path] = Found(PROGRAM if info.st_mode & stat.S_IXUSR else FILE, info.st_size)
        elif depth >= _MAX_DEPTH:
            self.problems[path] = "the directory is nested too deeply"
        else:
            with closing_descriptor(os.open(name, _DIRECTORY, dir_fd=directory)) as descriptor:
                self._scan(descriptor, path + b"/", depth + 1)


def compare(
    tree: WorkTree,
    entries: Mapping[bytes, Entry],
    rules: ChangeRules,
    ignored: Callable[[Sequence[bytes]], set[bytes]],
) -> tuple[list[Change], dict[bytes, str]]:
    """Return the changes from a commit to a directory, and path to reason for the paths that stay
    unchanged.

    Args:
        tree: the directory.
        entries: content of the commit by path.
        rules: rules for the changes.
        ignored: returns those of the given new paths that the commit's ``.gitignore`` files ignore.

    Raises:
        PatchError: the new and changed files are too large in all.
    """
    left_out = ignored([path for path in (*tree.found, *tree.problems) if path not in entries])
    comparison = _Comparison(tree, entries, rules)
    comparison.check_sizes(left_out)  # before files are read
    for path in sorted(tree.found.keys() - left_out):
        comparison.add(path, tree.found[path])
    for path in tree.problems.keys() - left_out:
        comparison.drop(path, tree.problems[path])
    for path, entry in entries.items():
        if path not in tree.found and entry.mode != SUBMODULE and not is_bytecode(path):
            comparison.add(path, None)
    return effective_changes(comparison.changes, comparison.dropped), comparison.dropped


class _Comparison:
    """Collects the changes, and the paths that are left out."""

    def __init__(self, tree: WorkTree, entries: Mapping[bytes, Entry], rules: ChangeRules) -> None:
        self.changes: list[Change] = []
        self.dropped: dict[bytes, str] = {}
        self._tree = tree
        self._entries = entries
        self._rules = rules
        self._sizes: dict[bytes, int] = {}
        self._left = rules.max_change_bytes

    def check_sizes(self, left_out: Collection[bytes]) -> None:
        """Check the sizes of the files whose size or mode shows that they are new or changed."""
        changed = {path: one for path, one in self._tree.found.items() if self._differs(path, one)}
        kept = {path: one.size for path, one in changed.items() if not self._problem(path, one)}
        self._rules.check_total({path: size for path, size in kept.items() if path not in left_out})

    def drop(self, path: bytes, reason: str) -> None:
        """Record that a path stays unchanged."""
        self.dropped[path] = reason

    def add(self, path: bytes, found: Found | None) -> None:
        """Record the change of a path, if it changed; ``found`` is None if the directory does not
        have it.
        """
        entry = self._entries.get(path)
        if entry is not None and entry.mode == SUBMODULE:
            return self.drop(path, "a submodule cannot be changed")
        if found is None:
            problem = self._rules.problem(path)
            return self.drop(path, problem) if problem else self.changes.append(Change(path, GONE))
        if self._differs(path, found) and (problem := self._problem(path, found)):
            return self.drop(path, problem)
        # a file that grows meanwhile is refused as too large, not truncated
        limit = self._rules.max_file_bytes
        try:
            data = (
                found.link if found.mode == LINK else self._tree.read(path, max(found.size, limit))
            )
        except OSError as error:
            return self.drop(path, f"it cannot be read: {error.strerror}")
        if (
            entry is not None
            and entry.mode == found.mode
            and blob_name(data, len(entry.blob)) == entry.blob
        ):
            return None
        return self._add_content(path, Found(found.mode, len(data), found.link), data)

    def _add_content(self, path: bytes, found: Found, data: bytes) -> None:
        if problem := self._problem(path, found):
            return self.drop(path, problem)
        self._sizes[path] = len(data)
        self._left -= len(data)
        if self._left < 0:
            self._rules.check_total(self._sizes)
        return self.changes.append(Change(path, found.mode, data=data))

    def _differs(self, path: bytes, found: Found) -> bool:
        entry = self._entries.get(path)
        return entry is None or (entry.mode, entry.size) != (found.mode, found.size)

    def _problem(self, path: bytes, found: Found) -> str:
        link = link_problem(path, found.link) if found.mode == LINK else ""
        return self._rules.problem(path) or link or self._rules.size_problem(found.size)


def blob_name(data: bytes, digits: int) -> bytes:
    """Return git's object name of a blob.

    Args:
        data: content of the blob.
        digits: 40 for SHA-1, 64 for SHA-256.

    Source: gitformat-loose(5) and git-hash-object(1).
    """
    digest = hashlib.sha256() if digits == 64 else hashlib.sha1(usedforsecurity=False)
    digest.update(b"blob %d\0" % len(data))
    digest.update(data)
    return digest.hexdigest().encode()
