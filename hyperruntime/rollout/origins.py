"""Where repositories come from: sources as text, and fetching one commit of them with git.

Text of an item never becomes an option or a program: sources are checked, and git may use few
protocols.
"""

from __future__ import annotations

import os
import re

from hyperruntime.errors import RepositoryError, SpecError
from hyperruntime.git.bare_repository import checked
from hyperruntime.git.command import NO_CONNECTIONS, try_git
from hyperruntime.git.store import RepositoryStore
from hyperruntime.host.process import ProcessResult

_URL = re.compile(r"(?:file|git|https|ssh)://[!-~]+")
_OWNER_AND_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_NO_CONNECTIONS = " ".join(f"{name}={value}" for name, value in NO_CONNECTIONS.items())
# The user's repository may belong to another uid, and may be a partial clone whose configuration
# names programs.
_UPLOAD_PACK = f"{_NO_CONNECTIONS} git -c safe.directory='*' upload-pack"
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "file:git:https:ssh",
    "GIT_ASKPASS": "true",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
}
SOURCES = "the path of a git repository, or a file://, https://, ssh:// or git:// URL"


def checked_source(source: str | os.PathLike[str]) -> str:
    """Return the URL or the absolute path of a repository; a cached one need not exist any more.

    Raises:
        SpecError: the source is neither a valid URL nor a path.
    """
    text = os.fspath(source)
    if _URL.fullmatch(text):
        return text
    if not text or "://" in text:
        raise SpecError("repository", text, SOURCES)
    return os.path.realpath(text)


def source_of(repo: str, base_url: str | None) -> str:
    """Return the URL or absolute path of an item's repository.

    Args:
        repo: a URL, an absolute path, or ``owner/name`` below ``base_url``.
        base_url: URL or directory of the ``owner/name`` repositories, or None.

    Raises:
        SpecError: ``repo`` is invalid, or it is ``owner/name`` and ``base_url`` is None.
    """
    if "://" in repo or os.path.isabs(repo):
        return checked_source(repo)
    if not _OWNER_AND_NAME.fullmatch(repo):
        raise SpecError("repo", repo, "owner/name, a URL, or an absolute path")
    if base_url is None:
        raise SpecError(
            "repo", repo, "set the option repo_base_url for owner/name: https://..., file:///..."
        )
    base = base_url.rstrip("/")
    if "://" in base:
        return checked_source(f"{base}/{repo}.git")
    bare = os.path.join(base, f"{repo}.git")
    return checked_source(bare if os.path.isdir(bare) else os.path.join(base, repo))


def default_commit(url: str, timeout_s: float) -> str:
    """Return the commit of a repository's default branch.

    Args:
        url: URL or path of the repository.
        timeout_s: timeout in seconds.

    Raises:
        RepositoryError: the repository cannot be read, or has no commit.
    """
    local = ["--upload-pack", _UPLOAD_PACK] if url.startswith(("/", "file://")) else []
    found = _run(["ls-remote", "--quiet", *local, "--", url, "HEAD"], timeout_s)
    if found.exit_code != 0:
        raise RepositoryError(f"{url} cannot be fetched: {found.error_text}")
    if not (commit := found.stdout.decode().partition("\t")[0]):
        raise RepositoryError(f"{url} has no commit on its default branch; name a commit")
    return checked(commit)


def fetch(url: str, commit: str, target: str, timeout_s: float) -> None:
    """Fetch a commit into a new bare repository: only the commit if the server allows it, else all
    refs.

    Args:
        url: URL or path of the repository.
        commit: full name of the commit.
        target: path of the new bare repository.
        timeout_s: timeout of each git command.

    Raises:
        RepositoryError: the repository cannot be fetched, or the commit does not exist.
    """
    RepositoryStore(target).make(commit)
    os.unlink(os.path.join(target, "shallow"))  # the fetch may bring the parents of the commit
    where = [
        "--git-dir",
        target,
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
    ]
    local = ["--upload-pack", _UPLOAD_PACK] if url.startswith(("/", "file://")) else []
    alone = _run([*where, "--depth=1", *local, "--", url, commit], timeout_s)
    if alone.exit_code == 0:
        return
    everything = _run([*where, *local, "--", url, "+refs/*:refs/fetched/*"], timeout_s)
    if everything.exit_code != 0:
        raise RepositoryError(f"{url} cannot be fetched: {everything.error_text}")
    if (
        _run(["--git-dir", target, "cat-file", "-e", f"{commit}^{{commit}}"], timeout_s).exit_code
        != 0
    ):
        raise RepositoryError(f"{url} has no commit {commit}: {alone.error_text}")


def _run(args: list[str], timeout_s: float) -> ProcessResult:
    return try_git(args, env=_ENVIRONMENT, timeout_s=timeout_s)
