"""The bare repository behind a :class:`RepositoryStore`: wrappers for git plumbing commands."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from hyperruntime.errors import SpecError
from hyperruntime.git.change_rules import FILE, PROGRAM, Change
from hyperruntime.git.command import commit_stream, git, succeeded, try_git
from hyperruntime.git.foreign_files import RAW_ATTRIBUTES, refuse_foreign_files, refuse_links
from hyperruntime.git.ignore_rules import IgnoreRules, check_size
from hyperruntime.git.work_files import split_batch
from hyperruntime.git.worktree import Entry
from hyperruntime.host.process import ProcessResult

_BORROWED = "GIT_ALTERNATE_OBJECT_DIRECTORIES"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class BareRepository:
    """A bare repository that the run owns; each call keeps its temporary files in a directory that
    it removes.

    Attributes:
        path: absolute path of the repository.
        env: environment variables that make git use it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Store the path; the repository need not exist yet."""
        self.path = os.path.abspath(path)
        self.env = {"GIT_DIR": self.path}
        self._has_no_links = False

    def git(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,  # noqa: A002 - the process seam's own word
    ) -> bytes:
        """Run git on this repository and return its standard output.

        Args:
            *args: arguments of git.
            env: environment variables that select the repository; None for :attr:`env`.
            input: standard input.

        Raises:
            RepositoryError: as for :meth:`try_git`, or git failed.
        """
        return succeeded(args, self.try_git(*args, env=env, input=input))

    def try_git(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,  # noqa: A002 - the process seam's own word
    ) -> ProcessResult:
        """Run git on this repository and return its result, even if it failed; the parameters are
        those of :meth:`git`.

        Raises:
            GitTimeoutError: it ran past its deadline.
            RepositoryError: git is not installed, or the repository was changed by another program.
        """
        self._check()
        return try_git(args, env=env or self.env, input=input)

    def borrow(self, objects: str | os.PathLike[str]) -> None:
        """Read also the objects of another directory, from now on, through this value only."""
        self.env |= borrowing(os.fspath(objects))

    def make(self, root: str | None) -> None:
        """Create the repository with mode 0700, or keep an existing one.

        Args:
            root: a commit that the repository will hold without its parents; None for none.

        Raises:
            RepositoryError: git failed, or an existing repository holds links or special files.
        """
        self._refuse_links()
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        git(["init", "-q", "--bare", "--template=", object_format(root), "--", self.path])
        for name in ("info", "tmp"):
            os.makedirs(os.path.join(self.path, name), exist_ok=True)
        if not os.path.lexists(os.path.join(self.path, "info/attributes")):
            write_text(self.path, "info/attributes", RAW_ATTRIBUTES)
        if root is not None:
            write_text(self.path, "shallow", root + "\n")

    def _check(self) -> None:
        """Refuse a repository that another program changed; the first call of this value also looks
        for links.
        """
        refuse_foreign_files(self.path)
        self._refuse_links()

    def _refuse_links(self) -> None:
        if not self._has_no_links:
            self._has_no_links = refuse_links(self.path)

    def recover(self) -> None:
        """Remove the leftovers of killed processes: temporary files, half-written objects,
        reference locks.

        Only the owner of the run may call this, and only before it starts work.

        Raises:
            RepositoryError: the repository was changed by another program.
        """
        self._check()
        for directory, subdirectories, names in os.walk(self.path):
            if directory == os.path.join(self.path, "tmp"):
                for name in subdirectories:
                    shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
                subdirectories.clear()
            for name in names:
                if name.endswith(".lock") or name.startswith(("tmp_", "fast_import_crash_")):
                    os.unlink(os.path.join(directory, name))

    def copy_objects(self, commit: str, source: str, git_dir: str) -> None:
        """Copy all objects of a commit, without its parents, into a repository.

        Args:
            commit: full name of the commit.
            source: object directory to read from.
            git_dir: repository to write to.

        Raises:
            RepositoryError: an object is missing.
            SpecError: ``commit`` is not a full commit name.
        """
        self._check()
        env = {"GIT_DIR": git_dir, **borrowing(source, self.env)}
        pack = os.path.join(git_dir, "objects", "pack", "pack")
        wanted = f"--shallow {checked(commit)}\n{commit}\n"
        args = ["pack-objects", "-q", "--revs", "--window=0", "--threads=1", pack]
        git(args, env=env, input=wanted.encode())

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """Yield a temporary directory that is removed afterwards."""
        home = os.path.join(self.path, "tmp")
        with tempfile.TemporaryDirectory(dir=home, ignore_cleanup_errors=True) as directory:
            yield directory

    @contextmanager
    def index(self, commit: str | None = None) -> Iterator[dict[str, str]]:
        """Yield the environment of a temporary index with the files of a commit; the index is empty
        for None.

        Raises:
            RepositoryError: git failed, or the repository was changed by another program.
        """
        self._check()
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
        """Return those of ``paths`` that the ``.gitignore`` files among ``entries`` ignore.

        Args:
            entries: files of a commit by path.
            paths: paths that the commit does not have.

        Raises:
            PatchError: the files are too large, or have too many rules for so many paths.
            RepositoryError: git failed.
        """
        files = {
            os.path.dirname(path): entry
            for path, entry in entries.items()
            if os.path.basename(path) == b".gitignore" and entry.mode in (FILE, PROGRAM)
        }
        if not files or not paths:
            return set()
        check_size(entry.size for entry in files.values())
        contents = self.read_blobs([entry.blob for entry in files.values()])
        return IgnoreRules(dict(zip(files, contents, strict=True))).ignored(paths)

    def read_blobs(self, blobs: Sequence[bytes]) -> list[bytes]:
        """Return the contents of blobs, in the same order."""
        output = self.git("cat-file", "--batch", input=b"\n".join(blobs) + b"\n") if blobs else b""
        return split_batch(output, len(blobs))

    def blob_sizes(self, blobs: Sequence[bytes]) -> list[int]:
        """Return the sizes of blobs in bytes, in the same order."""
        args = ("cat-file", "--batch-check=%(objectsize)")
        return (
            [int(size) for size in self.git(*args, input=b"\n".join(blobs) + b"\n").split()]
            if blobs
            else []
        )

    def commit(
        self, parent: str | None, changes: Sequence[Change], reference: str, message: str
    ) -> str:
        """Commit changes, point a reference at the commit, and return its name.

        Args:
            parent: commit that the changes apply to; None for an empty tree.
            changes: the changed paths.
            reference: full name of the reference.
            message: commit message.

        Raises:
            RepositoryError: git failed.
        """
        stream = commit_stream(parent, changes, reference, message)
        output = self.git(
            "fast-import", "--quiet", "--done", "--force", "--date-format=raw", input=stream
        )
        return output.decode().strip()


def checked(commit: str) -> str:
    """Return ``commit`` unchanged if it is a full commit name.

    Raises:
        SpecError: it is not 40 or 64 hexadecimal digits.
    """
    if not _COMMIT.fullmatch(commit):
        raise SpecError("commit", commit, "give the full name of a commit")
    return commit


def object_format(commit: str | None) -> str:
    """Return the ``git init`` option for a repository that can hold ``commit``; None is SHA-1."""
    return "--object-format=" + (
        "sha256" if commit is not None and len(checked(commit)) == 64 else "sha1"
    )


def borrowing(objects: str, env: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the variable with which git reads also the objects of another object directory.

    Args:
        objects: the directory.
        env: variables, whose borrowed objects stay.

    Source: git(1), ``GIT_ALTERNATE_OBJECT_DIRECTORIES``.
    """
    quoted = '"' + objects.replace("\\", "\\\\").replace('"', '\\"') + '"'
    before = env.get(_BORROWED, "")
    return {_BORROWED: f"{quoted}:{before}" if before else quoted}


def write_text(directory: str, name: str, text: str, mode: str = "w") -> None:
    """Write a small text file of a git repository.

    Args:
        directory: the git directory.
        name: path of the file in it.
        text: content.
        mode: mode of :func:`open`: ``w`` replaces the file, ``a`` appends to it.
    """
    with open(os.path.join(directory, name), mode, encoding="utf-8") as file:
        file.write(text)
