"""Keep an agent repository's states as commits of one bare repository; git itself for everything git does.

Imports errors, git, changes, patch and worktree. A state is a commit, so a lineage of a thousand patches costs no
more to bring in than one. What a container wrote is read from outside, with nothing believed that its ``.git`` says.
Design: docs/decisions/0006-workspaces-and-patches.md.
"""

from __future__ import annotations

import os
import re

import attrs

from hyperruntime.errors import RepositoryError
from hyperruntime.git import try_git
from hyperruntime.patch import Notes

BRANCH = "main"
_REFS = "refs/hyperruntime/gen/"
_GENERATION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_RAW = "* -text -ident !eol !filter !diff !merge !working-tree-encoding !whitespace\n"  # bytes as they are
_EXCLUDE = "__pycache__/\n*.pyc\n*.pyo\n"
_GIT_MEMORY = "1g"  # a small delta may claim to become a file of any size
_DIFF = (
    "diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff",
    "--no-textconv", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
_LISTED = 5


@attrs.frozen(kw_only=True)
class Snapshot:
    """A state of the agent repository, and how it differs from its parent.

    Attributes:
        commit: the state; the parent's own commit where nothing changed.
        patch: the binary git diff from the parent's state to this one; empty where nothing changed.
        dropped: ``(path, reason)`` of each change that was left out.
    """

    commit: str
    patch: bytes
    dropped: Notes


def inspect_repository(path: str | os.PathLike[str]) -> str:
    """Return the commit that an agent repository is at: one that holds all there is.

    Raises:
        RepositoryError: it is no git repository, has no commit, or holds changes that no commit has.
    """
    where = os.path.realpath(path)
    if not os.path.isdir(where):
        raise RepositoryError(f"agent repository {os.fspath(path)!r} is no directory")
    top = try_git(["-C", where, "rev-parse", "--is-bare-repository", "--show-toplevel"])
    bare, _, root = os.fsdecode(top.stdout).partition("\n")
    if bare == "true":
        raise RepositoryError(f"agent repository {where!r} is bare; give a clone that has its files")
    if top.exit_code != 0 or root.rstrip("\n") != where:
        inside = f" (it is part of {root.rstrip()!r})" if top.exit_code == 0 and root else ""
        raise RepositoryError(f"{where!r} is not a git repository{inside}; run git init there, git add and git commit")
    head = try_git(["-C", where, "rev-parse", "--verify", "--quiet", "HEAD^{commit}"])
    if head.exit_code != 0:
        raise RepositoryError(f"agent repository {where!r} has no commit; run git add --all and git commit")
    _refuse_dirty(where)
    return head.stdout.decode().strip()


def _refuse_dirty(where: str) -> None:
    names = try_git(["-C", where, "config", "-z", "--name-only", "--get-regexp", r"^filter\."]).stdout
    config = [(os.fsdecode(name), "") for name in names.split(b"\0") if name and not name.endswith(b".required")]
    config += [(os.fsdecode(name), "false") for name in names.split(b"\0") if name.endswith(b".required")]
    status = ["status", "--porcelain=v1", "-z", "--untracked-files=normal", "--ignore-submodules=dirty", "--no-renames"]
    result = try_git(["-C", where, *status], config=config)
    if result.exit_code != 0:
        raise RepositoryError(f"git status failed in {where!r}: {result.error_text}")
    changed = [os.fsdecode(line[3:]) for line in result.stdout.split(b"\0") if line]
    if changed:
        shown = ", ".join(map(repr, changed[:_LISTED])) + (", ..." if len(changed) > _LISTED else "")
        raise RepositoryError(
            f"agent repository {where!r} holds {len(changed)} changes that no commit has ({shown}); "
            "commit or stash them, or name them in .gitignore"
        )
