"""Check the user's agent repository.

The file ``.env`` at the top of an agent repository configures the gateway of a run. It stays in
that repository: no commit of the store, no container and no diff contains it.
"""

from __future__ import annotations

import os

from hyperruntime.errors import RepositoryError
from hyperruntime.git.command import git_environment, try_git

ENV_FILE = ".env"
_LISTED = 5


def inspect_repository(path: str | os.PathLike[str]) -> str:
    """Return the HEAD commit of an agent repository without uncommitted changes; ``.env`` is
    ignored.

    Raises:
        RepositoryError: it is not the top of a git repository, is bare or a partial clone, has no
            commit, or has uncommitted changes.
    """
    where = os.path.realpath(path)
    if not os.path.isdir(where):
        raise RepositoryError(f"agent repository {os.fspath(path)!r} is not a directory")
    top = try_git(["-C", where, "rev-parse", "--is-bare-repository", "--show-toplevel"])
    bare, _, root = os.fsdecode(top.stdout).partition("\n")
    if bare == "true":
        raise RepositoryError(f"agent repository {where!r} is bare; give a clone with a work tree")
    if top.exit_code != 0 or root.removesuffix("\n") != where:
        raise RepositoryError(
            f"{where!r} is not the top of a git repository; run git init, git add --all and git "
            "commit there"
        )
    _refuse_partial(where)
    head = try_git(["-C", where, "rev-parse", "--verify", "--quiet", "HEAD^{commit}"])
    if head.exit_code != 0:
        raise RepositoryError(
            f"agent repository {where!r} has no commit; run git add --all and git commit"
        )
    _refuse_dirty(where)
    return head.stdout.decode().strip()


def _refuse_dirty(where: str) -> None:
    status = try_git(
        ["-C", where, "status", "--porcelain=v1", "-z", "--untracked-files=normal",
         "--ignore-submodules=dirty", "--no-renames"],
        env=git_environment(_no_filters(where)),
    )  # fmt: skip
    if status.exit_code != 0:
        raise RepositoryError(f"git status failed in {where!r}: {status.error_text}")
    names = [os.fsdecode(line[3:]) for line in status.stdout.split(b"\0") if line]
    changed = [name for name in names if name != ENV_FILE]  # never copied
    if changed:
        shown = ", ".join(map(repr, changed[:_LISTED])) + (
            ", ..." if len(changed) > _LISTED else ""
        )
        raise RepositoryError(
            f"agent repository {where!r} has uncommitted changes ({len(changed)}: {shown}); "
            "commit or stash them, or add them to .gitignore"
        )


def _refuse_partial(where: str) -> None:
    """Refuse a partial clone: git fetches its missing objects with programs that its configuration
    names.
    """
    names = _configured(
        where, r"^(extensions\.partialclone|remote\..*\.(promisor|partialclonefilter))$"
    )
    if names:
        raise RepositoryError(
            f"agent repository {where!r} is a partial clone ({names[0]} is set), so objects may "
            "be missing; clone it again without --filter"
        )


def _configured(where: str, names: str) -> list[str]:
    """Return the names in a repository's configuration that match a regular expression."""
    found = try_git(["-C", where, "config", "-z", "--name-only", "--get-regexp", names]).stdout
    return [os.fsdecode(name) for name in found.split(b"\0") if name]


def _no_filters(where: str) -> list[tuple[str, str]]:
    """Return configuration that disables the filter programs of a repository."""
    names = _configured(where, r"^filter\.")
    return [(name, "false" if name.endswith(".required") else "") for name in names]
