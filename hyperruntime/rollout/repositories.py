"""Repositories for agents to work in: fetched once, kept on the host, streamed into slots.

Each commit that is asked for has an entry of its own in the cache:
a bare repository with that one commit, and a tar of a private clone of it. Slots get the tar's bytes and never see the
cache, so no agent can change what another one gets, and none meets a commit that came later.
Design: docs/decisions/0026-environments.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
from filelock import FileLock, Timeout

from hyperruntime.errors import HyperRuntimeError, RepositoryError, SpecError, StorageError, TransferError
from hyperruntime.git.bare_repository import checked, write_text
from hyperruntime.git.command import git_environment
from hyperruntime.git.store import RepositoryStore
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.process import ProcessResult, run_process
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.logs import get_logger
from hyperruntime.pool.lease import Lease
from hyperruntime.transfer.tar_writer import write_tree

log = get_logger(__name__)

_PROTOCOLS = "file:git:https:ssh"
_URL = re.compile(r"(?:file|git|https|ssh)://[!-~]+")
_OWNER_AND_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_UPLOAD_PACK = "git -c safe.directory='*' upload-pack"  # a repository of the user's may be another uid's
_STORE, _TAR, _MANIFEST = "repository.git", "workspace.tar", "manifest.json"
_RECENT_S = 3600.0
_UNPACK_TIMEOUT_S: Final = 600.0
# An image's own .git at this place may know later commits.
_UNPACK = 'mkdir -p -- "$1" && rm -rf -- "$1/.git" && exec tar -xpof - -C "$1"'
_THREADS = 8


@attrs.frozen(kw_only=True)
class Checkout:
    """A commit, ready to be brought into slots.

    Attributes:
        commit: its name.
        tar: path of a tar of a private clone at this commit, on branch ``main``, that holds no other commit.
        repository: path of the bare repository with this one commit.
    """

    commit: str
    tar: str
    repository: str

    @contextmanager
    def store(self) -> Iterator[RepositoryStore]:
        """Yield a store that has this commit, for states that come from it; what is kept in it goes at the end."""
        with tempfile.TemporaryDirectory(prefix="hyperruntime-store-", ignore_cleanup_errors=True) as directory:
            store = RepositoryStore(os.path.join(directory, _STORE))
            store.make(self.commit)
            write_text(store.path, "objects/info/alternates", os.path.join(self.repository, "objects") + "\n")
            yield store

    async def unpack(self, lease: Lease, repo_dir: str) -> None:
        """Write the clone to a directory of a slot, as the slot's user; needs ``tar`` in the image.

        Args:
            lease: the slot.
            repo_dir: relative to the workspace, or absolute; made where it is missing.

        Raises:
            TransferError: the slot could not take it.
        """
        with open(self.tar, "rb") as source:
            args = ["/bin/sh", "-c", _UNPACK, "unpack", repo_dir if repo_dir.startswith("/") else f"./{repo_dir}"]
            result = await lease.exec(args, input=source, timeout_s=_UNPACK_TIMEOUT_S)
        if result.exit_code != 0:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            why = lines[-1] if lines else f"exit code {result.exit_code}"
            raise TransferError(f"the repository could not be unpacked at {repo_dir!r} in the slot: {why}")


class Repositories:
    """The cache of one directory; safe for use from many threads and processes.

    Attributes:
        directory: where it is.
    """

    def __init__(self, cache_dir: str | os.PathLike[str] | None = None, *, fetch_timeout_s: float = 1800.0) -> None:
        """Name the directory; nothing is looked at.

        Args:
            cache_dir: None is a place in the user's cache directory.
            fetch_timeout_s: how long one fetch may take, and another process be waited for that does it.
        """
        self.directory = os.path.abspath(cache_dir or cache_directory() / "repositories")
        self._timeout_s = fetch_timeout_s
        self._verified: dict[str, tuple[int, ...]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="hyperruntime-repositories")
        self._flights: dict[tuple[str, str], Future[Checkout]] = {}
        self._lock = threading.Lock()

    async def aprepare(self, source: str | os.PathLike[str], commit: str) -> Checkout:
        """Do what :meth:`prepare` does without blocking the event loop; callers at once share one thread."""
        return await asyncio.shield(asyncio.wrap_future(self._flight(os.fspath(source), commit)))

    def prepare(self, source: str | os.PathLike[str], commit: str) -> Checkout:
        """Return a commit of a repository; it is fetched where no process of this machine has done so before.

        An entry whose bytes are not those that were written is made anew.

        Args:
            source: ``file://``, ``https://``, ``ssh://`` or ``git://``, or the path of a repository.
            commit: its full name.

        Raises:
            SpecError: ``source`` or ``commit`` is of another form.
            RepositoryError: the repository cannot be reached, or has no such commit.
            StorageError: the cache cannot be written.
        """
        url = checked_source(source)
        entry = self._entry(url, checked(commit))
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            if not self._is_sound(entry):
                with FileLock(entry + ".lock", timeout=self._timeout_s):
                    if not self._is_sound(entry):
                        self._make(url, commit, entry)
            os.utime(os.path.join(entry, _MANIFEST))
        except Timeout:
            raise RepositoryError(f"another process has been fetching {url} for {self._timeout_s:.0f} s") from None
        except HyperRuntimeError:
            raise
        except OSError as error:
            raise StorageError(f"the repository cache {self.directory!r} cannot be used: {error}") from error
        return Checkout(commit=commit, tar=os.path.join(entry, _TAR), repository=os.path.join(entry, _STORE))

    def size_bytes(self) -> int:
        """Return how many bytes the entries have."""
        return sum(entry_bytes for _, _, entry_bytes in self._entries())

    def prune(self, max_bytes: int) -> int:
        """Remove what was used longest ago until ``max_bytes`` are left; return the bytes that went.

        What was used in the last hour stays: somebody may be reading it.
        """
        left, gone = self.size_bytes(), 0
        for used, entry, entry_bytes in sorted(self._entries()):
            if left <= max_bytes or time.time() - used < _RECENT_S:
                break
            with FileLock(entry + ".lock", timeout=self._timeout_s):
                remove_tree(entry)
            left, gone = left - entry_bytes, gone + entry_bytes
        return gone

    def _flight(self, source: str, commit: str) -> Future[Checkout]:
        key = source, commit
        with self._lock:
            if key in self._flights:
                return self._flights[key]
            flight = self._flights[key] = self._threads.submit(self.prepare, source, commit)
        flight.add_done_callback(lambda _: self._land(key))
        return flight

    def _land(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._flights.pop(key, None)

    def _entry(self, url: str, commit: str) -> str:
        name = "".join(c if c.isalnum() else "_" for c in url.rstrip("/").removesuffix(".git").rpartition("/")[2])
        digest = hashlib.sha256(f"{url}\0{commit}".encode()).hexdigest()[:24]
        return os.path.join(self.directory, f"{name[:40]}-{digest}")

    def _entries(self) -> Iterator[tuple[float, str, int]]:
        if not os.path.isdir(self.directory):
            return
        for found in os.scandir(self.directory):
            manifest = os.path.join(found.path, _MANIFEST)
            if found.is_dir(follow_symlinks=False) and os.path.isfile(manifest):
                files = [path for path in Path(found.path).rglob("*") if path.is_file()]
                yield os.stat(manifest).st_mtime, found.path, sum(path.stat().st_size for path in files)

    def _make(self, url: str, commit: str, entry: str) -> None:
        started = time.monotonic()
        remove_tree(entry)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=self.directory, ignore_cleanup_errors=True) as scratch:
            fetched, made = os.path.join(scratch, "fetched.git"), os.path.join(scratch, "made")
            fetch(url, commit, fetched, self._timeout_s)
            store = RepositoryStore(os.path.join(made, _STORE))
            store.make(commit)
            store.copy_objects(commit, os.path.join(fetched, "objects"), store.path)
            clone = os.path.join(scratch, "clone")
            store.checkout(commit, clone)
            with open(os.path.join(made, _TAR), "wb") as file:
                write_tree(clone, file, ".")
            _write_manifest(made, url, commit)
            os.rename(made, entry)
        log.info("repository fetched", source=url, commit=commit, duration_s=round(time.monotonic() - started, 3))

    def _is_sound(self, entry: str) -> bool:
        """Tell whether an entry is as it was written; its bytes are read once while their files stay the same."""
        try:
            manifest = json.loads(Path(entry, _MANIFEST).read_bytes())
            files = manifest["files"]
            stamp = tuple(n for name in files for n in _stamp(os.path.join(entry, name)))
            if self._verified.get(entry) == stamp:
                return True
            sound = all(_sha256(os.path.join(entry, name)) == digest for name, digest in files.items())
        except FileNotFoundError:
            return False
        except (ValueError, KeyError, TypeError, AttributeError):
            sound, stamp = False, ()
        if sound:
            self._verified[entry] = stamp
        else:
            log.warning("repository cache entry is damaged and is made anew", entry=entry)
        return sound


def checked_source(source: str | os.PathLike[str]) -> str:
    """Return the URL or absolute path of a repository.

    Raises:
        SpecError: it is neither.
    """
    text = os.fspath(source)
    if "://" in text:
        if not _URL.fullmatch(text):
            raise SpecError("repository", text, "file://, https://, ssh:// or git://, or a path")
        return text
    path = os.path.realpath(text)
    if not text or "\0" in text or not os.path.isdir(path):
        raise SpecError("repository", text, "the path of a git repository, or file://, https://, ssh:// or git://")
    return path


def source_of(repo: str, base_url: str | None) -> str:
    """Return where the repository of an item is: ``owner/name`` below a base URL, or what it names itself.

    Raises:
        SpecError: it is neither a path, nor a URL, nor ``owner/name`` with a base URL.
    """
    if "://" in repo or os.path.isabs(repo):
        return checked_source(repo)
    if not _OWNER_AND_NAME.fullmatch(repo):
        raise SpecError("repo", repo, "owner/name, a URL, or an absolute path")
    if base_url is None:
        raise SpecError("repo", repo, "the option repo_base_url says where owner/name is: https://..., file:///...")
    base = base_url.rstrip("/")
    if "://" in base:
        return checked_source(f"{base}/{repo}.git")
    bare = os.path.join(base, f"{repo}.git")
    return checked_source(bare if os.path.isdir(bare) else os.path.join(base, repo))


def fetch(url: str, commit: str, target: str, timeout_s: float) -> None:
    """Fetch a commit, alone if the server gives it so, else with all there is, into a new bare repository.

    Raises:
        RepositoryError: the repository cannot be reached, or has no such commit.
    """
    RepositoryStore(target).make(commit)
    os.unlink(os.path.join(target, "shallow"))  # what comes may have its parents
    where = ["--git-dir", target, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"]
    local = ["--upload-pack", _UPLOAD_PACK] if url.startswith(("/", "file://")) else []
    alone = _run([*where, "--depth=1", *local, "--", url, commit], timeout_s)
    if alone.exit_code == 0:
        return
    everything = _run([*where, *local, "--", url, "+refs/*:refs/fetched/*"], timeout_s)
    if everything.exit_code != 0:
        raise RepositoryError(f"{url} cannot be fetched: {everything.error_text}")
    if _run(["--git-dir", target, "cat-file", "-e", f"{commit}^{{commit}}"], timeout_s).exit_code != 0:
        raise RepositoryError(f"{url} has no commit {commit}: {alone.error_text}")


def _run(args: list[str], timeout_s: float) -> ProcessResult:
    env = git_environment() | {"GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_LFS_SKIP_SMUDGE": "1", "GIT_ASKPASS": "true"}
    env["GIT_SSH_COMMAND"] = "ssh -o BatchMode=yes"
    try:
        return run_process(["git", *args], env=env, timeout_s=timeout_s)
    except FileNotFoundError:
        raise RepositoryError("git is not installed; install the package git") from None
    except TimeoutError as error:
        raise RepositoryError(str(error)) from None


def _write_manifest(made: str, url: str, commit: str) -> None:
    objects = [path for path in Path(made, _STORE, "objects").rglob("*") if path.is_file()]
    names = [_TAR, f"{_STORE}/shallow", *sorted(os.path.relpath(path, made) for path in objects)]
    files = {name: _sha256(os.path.join(made, name)) for name in names}
    content = json.dumps({"source": url, "commit": commit, "files": files}, indent=1)
    Path(made, _MANIFEST).write_text(content, encoding="utf-8")


def _stamp(path: str) -> tuple[int, ...]:
    info = os.stat(path)
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
