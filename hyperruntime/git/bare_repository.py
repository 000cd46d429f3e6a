"""The bare repository under a store of states: git plumbing, one method per need."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hyperruntime.errors import RepositoryError, SpecError
from hyperruntime.git.change_rules import LINK, Change
from hyperruntime.git.command import commit_stream, git, try_git
from hyperruntime.git.worktree import Entry

# Bytes stay as they are: this file beats every .gitattributes (gitattributes(5)).
RAW_ATTRIBUTES = "* -text -ident !eol !filter !diff !merge !working-tree-encoding !whitespace\n"

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class BareRepository:
    """A bare repository of our own; every private file of a call lies in a directory that the call removes.

    Attributes:
        path: where it is.
        env: what makes git use it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the repository; nothing is looked at."""
        self.path = os.path.abspath(path)
        self.env = {"GIT_DIR": self.path}

    def git(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,  # noqa: A002 - the process seam's own word
    ) -> bytes:
        """Run git on this repository and return what it wrote.

        Raises:
            RepositoryError: it failed.
        """
        return git(args, env=env or self.env, input=input)

    def make(self, root: str | None) -> None:
        """Make the repository, or keep the one there is; only this user may enter it.

        ``root`` is a commit that comes without its parents.
        """
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        git(["init", "-q", "--bare", "--template=", object_format(root), "--", self.path])
        for name in ("info", "tmp"):
            os.makedirs(os.path.join(self.path, name), exist_ok=True)
        write_text(self.path, "info/attributes", RAW_ATTRIBUTES)
        if root is not None:
            write_text(self.path, "shallow", root + "\n")

    def recover(self) -> None:
        """Remove what killed processes left: private files, half-written objects, locks of references.

        Only the process that owns the run may call this, before it starts any work.
        """
        for directory, subdirectories, names in os.walk(self.path):
            if directory == os.path.join(self.path, "tmp"):
                for name in subdirectories:
                    shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
                subdirectories.clear()
            for name in names:
                if name.endswith(".lock") or name.startswith(("tmp_", "fast_import_crash_")):
                    os.unlink(os.path.join(directory, name))

    def copy_objects(self, commit: str, source: str, git_dir: str) -> None:
        """Put all objects of a commit, but not its parents, from an object directory into a repository.

        Raises:
            RepositoryError: an object is missing.
        """
        quoted = '"' + source.replace("\\", "\\\\").replace('"', '\\"') + '"'
        env = {"GIT_DIR": git_dir, "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted}
        pack = os.path.join(git_dir, "objects", "pack", "pack")
        wanted = f"--shallow {checked(commit)}\n{commit}\n"
        args = ["pack-objects", "-q", "--revs", "--window=0", "--threads=1", pack]
        git(args, env=env, input=wanted.encode())

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """Yield a private directory that is removed afterwards."""
        home = os.path.join(self.path, "tmp")
        with tempfile.TemporaryDirectory(dir=home, ignore_cleanup_errors=True) as directory:
            yield directory

    @contextmanager
    def index(self, commit: str | None = None) -> Iterator[dict[str, str]]:
        """Yield the environment of a private index that holds a commit's files, or nothing."""
        with self.scratch() as directory:
            env = self.env | {"GIT_INDEX_FILE": os.path.join(directory, "index")}
            if commit is not None:
                self.git("read-tree", checked(commit), env=env)
            yield env

    def entries(self, commit: str) -> dict[bytes, Entry]:
        """Return the files of a commit by path."""
        entries = {}
        listing = self.git("ls-tree", "-r", "-l", "-z", "--full-tree", checked(commit))
        for line in listing.split(b"\0")[:-1]:
            facts, _, path = line.partition(b"\t")
            mode, _, blob, size = facts.split()
            entries[path] = Entry(mode, blob, 0 if size == b"-" else int(size))
        return entries

    def ignored(self, entries: Mapping[bytes, Entry], paths: Sequence[bytes]) -> set[bytes]:
        """Return which of some new paths the ``.gitignore`` files among a commit's entries name."""
        rules = [
            (path, entry.blob)
            for path, entry in entries.items()
            if os.path.basename(path) == b".gitignore" and entry.mode != LINK
        ]
        if not rules or not paths:
            return set()
        with self.scratch() as directory:
            contents = self.read_blobs([blob for _, blob in rules])
            for (path, _), data in zip(rules, contents, strict=True):
                _write_bytes(os.path.join(os.fsencode(directory), path), data)
            args = ["-C", directory, "check-ignore", "--no-index", "-z", "--stdin"]
            env = self.env | {"GIT_WORK_TREE": directory, "GIT_LITERAL_PATHSPECS": "0"}  # refused there
            asked = b"".join(b"./" + path + b"\0" for path in paths)  # "./" keeps ":" from meaning anything
            found = try_git(args, env=env, input=asked)
        if found.exit_code not in (0, 1):
            raise RepositoryError(f"git check-ignore failed: {found.error_text}")
        return {path.removeprefix(b"./") for path in found.stdout.split(b"\0")[:-1]}

    def read_blobs(self, blobs: Sequence[bytes]) -> list[bytes]:
        """Return the contents that some object names stand for."""
        output = self.git("cat-file", "--batch", input=b"\n".join(blobs) + b"\n") if blobs else b""
        contents, at = [], 0
        for _ in blobs:
            end = output.index(b"\n", at)
            size = int(output[at:end].split()[2])
            contents.append(output[end + 1 : end + 1 + size])
            at = end + size + 2
        return contents

    def blob_sizes(self, blobs: Sequence[bytes]) -> list[int]:
        """Return the sizes of some contents."""
        args = ("cat-file", "--batch-check=%(objectsize)")
        return [int(size) for size in self.git(*args, input=b"\n".join(blobs) + b"\n").split()] if blobs else []

    def commit(self, parent: str | None, changes: Sequence[Change], reference: str, message: str) -> str:
        """Make a commit of changes to its parent, point a reference at it, and return it."""
        stream = commit_stream(parent, changes, reference, message)
        output = self.git("fast-import", "--quiet", "--done", "--force", "--date-format=raw", input=stream)
        return output.decode().strip()


def checked(commit: str) -> str:
    """Return a commit's name once it is sure to be one.

    Raises:
        SpecError: it is none.
    """
    if not _COMMIT.fullmatch(commit):
        raise SpecError("commit", commit, "the full name of a commit")
    return commit


def object_format(commit: str | None) -> str:
    """Return the option that makes a repository for commits with such names."""
    return "--object-format=" + ("sha256" if commit is not None and len(checked(commit)) == 64 else "sha1")


def write_text(directory: str, name: str, text: str, mode: str = "w") -> None:
    """Write a small file of git's."""
    with open(os.path.join(directory, name), mode, encoding="utf-8") as file:
        file.write(text)


def _write_bytes(path: bytes, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
