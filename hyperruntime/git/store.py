"""Keep the states of an agent repository as commits of one bare repository.

A state is a commit, so a state after a thousand patches costs no more to check out than one after a
single patch. Files that a container wrote are read on the host; their ``.git`` is not trusted.
Design: docs/design/loop.md#states-and-patches.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

import attrs

from hyperruntime.errors import PatchError, RepositoryError, SpecError
from hyperruntime.git.bare_repository import (
    BareRepository,
    borrowing,
    checked,
    object_format,
    write_text,
)
from hyperruntime.git.change_rules import (
    DEFAULT_MAX_CHANGE_BYTES,
    FILE,
    GONE,
    LINK,
    PROGRAM,
    SUBMODULE,
    Change,
    ChangeRules,
    effective_changes,
    escape_problem,
    link_problem,
    region_problem,
)
from hyperruntime.git.command import git
from hyperruntime.git.foreign_files import RAW_ATTRIBUTES
from hyperruntime.git.patch import Notes, filter_patch
from hyperruntime.git.user_repository import ENV_FILE, inspect_repository
from hyperruntime.git.work_files import write_files
from hyperruntime.git.worktree import Entry, WorkTree, compare

__all__ = ["BRANCH", "RepositoryStore", "Snapshot", "inspect_repository"]

BRANCH = "main"

_Path = str | os.PathLike[str]
_ROOT_REF = "refs/hyperruntime/root"
_GENERATION_REFS = "refs/hyperruntime/gen/"
_GENERATION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_EXCLUDE = "__pycache__/\n*.pyc\n*.pyo\n"
_AGENT = "[user]\n\tname = agent\n\temail = agent@localhost\n"
_RULES = ChangeRules()
_GIT_MEMORY = "1g"  # a small delta may declare a result of any size
_APPLY = ("apply", "--cached", "--whitespace=nowarn")
_DIFF = (
    "diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff",
    "--no-textconv", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip


@attrs.frozen(kw_only=True)
class Snapshot:
    """A state of the agent repository, and its difference from its parent.

    Attributes:
        commit: the state; the parent's commit if nothing changed.
        patch: the binary git diff from the parent to this state; empty if nothing changed.
        dropped: ``(path, reason)`` of each change that was left out.
    """

    commit: str
    patch: bytes
    dropped: Notes


class RepositoryStore(BareRepository):
    """The bare repository with the states of one run; safe for use from many threads and processes.

    :meth:`add_repository` or :meth:`from_directory` creates it; an existing one can be used at
    once.
    """

    def add_repository(self, source: _Path) -> str:
        """Copy the HEAD commit of a git repository, without its history and its ``.env``; return
        the stored commit.

        In ``source``, git only inspects the state and runs no program; the objects are then read
        from outside.

        Raises:
            RepositoryError: as for :func:`inspect_repository`, or an object is missing.
        """
        commit = inspect_repository(source)
        there = ["-C", os.path.realpath(source)]
        objects = git([*there, "rev-parse", "--path-format=absolute", "--git-path", "objects"])
        self.make(commit)
        place = os.fsdecode(objects).removesuffix("\n")
        kept = self._without_env_file(commit, place)
        self.make(kept)
        self.copy_objects(kept, place, self.path)
        self.git("update-ref", _ROOT_REF, kept)
        return kept

    def _without_env_file(self, commit: str, objects: str) -> str:
        """Return a commit without ``.env``: the same one if it has none.

        Args:
            commit: full name of a commit.
            objects: object directory that has it; it is only read.

        Raises:
            RepositoryError: an object is missing, or git failed.
        """
        with self.index() as index:
            scratch = os.path.dirname(index["GIT_INDEX_FILE"])
            env = {**index, **borrowing(objects), "GIT_WORK_TREE": scratch}
            listed = ("ls-tree", "--full-tree", "-z", "--name-only", commit, "--", ENV_FILE)
            if not self.git(*listed, env=env):
                return commit
            self.git("read-tree", commit, env=env)
            self.git("update-index", "--force-remove", "--", ENV_FILE, env=env)
            tree = self.git("write-tree", env=env).decode().strip()
            message = b"agent repository, without its " + ENV_FILE.encode()
            return self.git("commit-tree", tree, env=env, input=message).decode().strip()

    def from_directory(self, directory: _Path) -> str:
        """Commit the files of a plain directory, without its ``.env``; the same files give the same
        commit.

        Raises:
            RepositoryError: it is not a directory, cannot be read, or holds an entry that a
                repository cannot hold.
            PatchError: it is too large.
        """
        self.make(None)
        rules = ChangeRules(max_file_bytes=DEFAULT_MAX_CHANGE_BYTES, protected=(ENV_FILE,))
        changes, dropped = self._compare(directory, {}, rules)
        for path, reason in dropped.items():
            if os.fsdecode(path) == ENV_FILE:
                continue
            raise RepositoryError(
                f"{os.fspath(directory)!r} cannot be a repository: {path!r} is {reason}"
            )
        return self.commit(None, changes, _ROOT_REF, "agent repository")

    def checkout(self, commit: str, target: _Path) -> None:
        """Clone a state to ``target``, as the working copy of a container.

        The clone holds only this commit, under the same name, on branch ``main``. It shares no file
        with the store and contains no path of the host.

        Args:
            commit: full name of the commit.
            target: a directory that is missing or empty.

        Raises:
            RepositoryError: the commit does not exist, or ``target`` is not empty or cannot be
                written.
        """
        where = _empty_directory(target)
        inner = os.path.join(where, ".git")
        options = ["--template=", f"--initial-branch={BRANCH}", object_format(commit)]
        git(["init", "-q", *options, "--", where])
        os.mkdir(os.path.join(inner, "info"))
        write_text(inner, "shallow", commit + "\n")
        write_text(inner, "info/attributes", RAW_ATTRIBUTES)
        write_text(inner, "info/exclude", _EXCLUDE)
        write_text(inner, "config", _AGENT, mode="a")
        self.copy_objects(commit, os.path.join(self.path, "objects"), inner)
        write_text(inner, f"refs/heads/{BRANCH}", commit + "\n")
        write_files(commit, where, {"GIT_DIR": inner})

    def snapshot(
        self,
        parent: str,
        tree_dir: _Path,
        generation: str | int,
        rules: ChangeRules = _RULES,
    ) -> Snapshot:
        """Store the state of a directory that a container wrote; nothing in it is trusted or run.

        Left out are paths that the parent's ``.gitignore`` files ignore, bytecode, protected paths,
        files over ``rules.max_file_bytes``, links that lead out, special files and unreadable
        files. These paths stay as in the parent. All are reported except ignored files and
        bytecode.

        Args:
            parent: commit of the parent.
            tree_dir: the directory.
            generation: name of the new state.
            rules: rules for the changes.

        Raises:
            PatchError: the directory has too many files, or its changes are too large.
            RepositoryError: the directory cannot be read, or git failed.
            SpecError: ``generation`` is not a valid name.
        """
        changes, dropped = self._compare(tree_dir, self.entries(parent), rules)
        self._drop_outside_regions(parent, changes, rules, dropped)
        changes = effective_changes(changes, dropped)
        return self._keep(parent, changes, _notes(dropped), generation)

    def apply_patch(
        self,
        parent: str,
        patch: bytes,
        generation: str | int,
        rules: ChangeRules = _RULES,
        *,
        fuzz: bool = False,
    ) -> Snapshot:
        """Apply a diff (git or plain unified) to the parent and store the result.

        Parts that touch protected paths or bytecode, files over ``rules.max_file_bytes``, links
        that lead out and submodules are left out and reported.

        Args:
            parent: commit of the parent.
            patch: the diff.
            generation: name of the new state.
            rules: rules for the changes.
            fuzz: if the diff does not apply, retry with one matching context line before and after
                each change instead of all.

        Raises:
            PatchError: the diff does not apply, its changes are too large, or it tries to leave the
                repository (``refused`` says how).
            RepositoryError: the parent does not exist, or git failed.
            SpecError: ``generation`` is not a valid name.
        """
        kept, notes = filter_patch(patch, rules)
        dropped: dict[bytes, str] = {}
        result = self._result(parent, kept, rules, dropped, fuzz=fuzz) if kept else []
        self._drop_outside_regions(parent, result, rules, dropped)
        changes = effective_changes(result, dropped)
        return self._keep(parent, changes, (*notes, *_notes(dropped)), generation)

    def replay(self, root: str, patches: Iterable[bytes]) -> str:
        """Apply diffs one after the other to a commit, and return the name of the resulting tree.

        Args:
            root: commit to start from.
            patches: the diffs of a lineage, oldest first.

        Raises:
            PatchError: a diff does not apply.
            RepositoryError: the commit does not exist, or git failed.
        """
        with self.index(root) as env:
            for patch in patches:
                self._apply(patch, env)
            return self.git("write-tree", env=env).decode().strip()

    def tree(self, commit: str) -> str:
        """Return the name of a commit's tree."""
        return self.git("rev-parse", "--verify", checked(commit) + "^{tree}").decode().strip()

    def commit_of(self, generation: str | int) -> str | None:
        """Return the commit of a generation, or None if it does not exist."""
        found = self.try_git("rev-parse", "--verify", "--quiet", _reference(generation))
        return found.stdout.decode().strip() if found.exit_code == 0 else None

    def patch_between(self, old: str, new: str) -> bytes:
        """Return the binary git diff from commit ``old`` to commit ``new``."""
        return self.git(*_DIFF, checked(old), checked(new))

    def read_file(self, commit: str, path: str) -> bytes | None:
        """Return the content of a file in a commit, or None if the file does not exist.

        Args:
            commit: full name of the commit.
            path: relative to the root of the repository.
        """
        found = self.try_git("cat-file", "blob", f"{checked(commit)}:{path}")
        return found.stdout if found.exit_code == 0 else None

    def export(self, commit: str, target: _Path) -> None:
        """Write the files of a commit, without ``.git``, to a directory.

        Args:
            commit: full name of the commit.
            target: a directory that is missing or empty.

        Raises:
            RepositoryError: the commit does not exist, or ``target`` is not empty or cannot be
                written.
        """
        where = _empty_directory(target)
        with self.index() as env:
            write_files(checked(commit), where, env)

    def _compare(
        self, directory: _Path, entries: Mapping[bytes, Entry], rules: ChangeRules
    ) -> tuple[list[Change], dict[bytes, str]]:
        try:
            with WorkTree(directory) as tree:
                return compare(tree, entries, rules, lambda paths: self.ignored(entries, paths))
        except OSError as error:
            raise RepositoryError(
                f"cannot read {os.fspath(directory)!r}: {error.strerror}"
            ) from error

    def _apply(self, patch: bytes, env: Mapping[str, str], *, fuzz: bool = False) -> None:
        if not patch.strip():
            return
        limited = {**env, "GIT_ALLOC_LIMIT": _GIT_MEMORY}
        result = self.try_git(*_APPLY, "-", env=limited, input=patch)
        if result.exit_code == 0:
            return
        if fuzz and self.try_git(*_APPLY, "-C1", "-", env=limited, input=patch).exit_code == 0:
            return
        lines = result.stderr.decode(errors="replace").splitlines() or ["git apply failed"]
        reason = lines[0].removeprefix("error: ").removeprefix("fatal: ")
        escapes = [
            line for line in lines if "beyond a symbolic link" in line or "invalid path" in line
        ]
        refused = tuple(
            (line.partition("'")[2].rpartition("'")[0], "it leads out") for line in escapes
        )
        raise PatchError(f"the diff does not apply: {reason}", refused)

    def _result(
        self,
        parent: str,
        patch: bytes,
        rules: ChangeRules,
        dropped: dict[bytes, str],
        *,
        fuzz: bool,
    ) -> list[Change]:
        """Return the changes that git makes for a diff; add the ones to leave out to
        ``dropped``.
        """
        with self.index(parent) as env:
            self._apply(patch, env, fuzz=fuzz)
            args = ("diff-index", "--cached", "--raw", "-z", "--no-abbrev", "--no-renames", parent)
            fields = self.git(*args, env=env).split(b"\0")[:-1]
        changes = []
        for facts, path in zip(fields[::2], fields[1::2], strict=True):
            old_mode, mode, _, blob, _ = facts[1:].split()
            if problem := escape_problem(path):
                name = os.fsdecode(path)
                raise PatchError(
                    f"the diff tries to leave the repository: {name!r} is {problem}",
                    ((name, problem),),
                )
            submodule = "a submodule cannot be changed" if SUBMODULE in (old_mode, mode) else ""
            if problem := rules.problem(path) or submodule:
                dropped[path] = problem
            changes.append(Change(path, mode, blob))
        new = [change for change in changes if change.mode != GONE and change.path not in dropped]
        self._drop_by_content(new, rules, dropped)
        return changes

    def _drop_by_content(
        self, new: Sequence[Change], rules: ChangeRules, dropped: dict[bytes, str]
    ) -> None:
        sizes: dict[bytes, int] = {}
        for change, size in zip(new, self.blob_sizes([change.blob for change in new]), strict=True):
            if problem := rules.size_problem(size):
                dropped[change.path] = problem
            else:
                sizes[change.path] = size
        rules.check_total(sizes)
        links = [change for change in new if change.mode == LINK and change.path not in dropped]
        for change, target in zip(
            links, self.read_blobs([change.blob for change in links]), strict=True
        ):
            if problem := link_problem(change.path, target):
                dropped[change.path] = problem

    def _drop_outside_regions(
        self, parent: str, changes: Sequence[Change], rules: ChangeRules, dropped: dict[bytes, str]
    ) -> None:
        """Add the files with changed lines outside of their markers to ``dropped``."""
        for change in changes:
            if change.path in dropped or not (markers := rules.markers(change.path)):
                continue
            old = self.read_file(parent, os.fsdecode(change.path))
            new = change.data
            if change.mode not in (FILE, PROGRAM):
                new = None
            elif new is None:
                (new,) = self.read_blobs([change.blob])
            problems = [region_problem(marker, old, new) for marker in markers]
            if problem := next(filter(None, problems), ""):
                dropped[change.path] = problem

    def _keep(
        self, parent: str, changes: Sequence[Change], notes: Notes, generation: str | int
    ) -> Snapshot:
        reference = _reference(generation)
        if not changes:
            self.git("update-ref", reference, checked(parent))
            return Snapshot(commit=parent, patch=b"", dropped=notes)
        commit = self.commit(parent, changes, reference, f"generation {generation}")
        return Snapshot(commit=commit, patch=self.patch_between(parent, commit), dropped=notes)


def _reference(generation: str | int) -> str:
    if not _GENERATION.fullmatch(str(generation)):
        raise SpecError("generation", generation, "use letters, digits, - and _")
    return f"{_GENERATION_REFS}{generation}"


def _empty_directory(target: _Path) -> str:
    where = os.path.abspath(target)
    try:
        os.makedirs(where, exist_ok=True)
        full = bool(os.listdir(where))
    except OSError as error:
        raise RepositoryError(f"cannot write {where!r}: {error.strerror}") from error
    if full:
        raise RepositoryError(f"{where!r} is not empty; name a new directory")
    return where


def _notes(dropped: Mapping[bytes, str]) -> Notes:
    return tuple((os.fsdecode(path), reason) for path, reason in sorted(dropped.items()))
