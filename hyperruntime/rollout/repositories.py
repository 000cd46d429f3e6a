"""Repositories for agents to work in: fetched once, cached on the host, streamed into slots.

The cache has one entry per commit: a bare repository that holds only this commit, and a tar of a
private clone of it. Slots get only the bytes of the tar. So an agent cannot change another agent's
repository, and cannot see later commits. Design: docs/design/rollouts.md#repositories.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import attrs
from filelock import FileLock, Timeout

from hyperruntime.concurrency.blocking import EXECS, blocking
from hyperruntime.errors import (
    HyperRuntimeError,
    PatchError,
    RepositoryError,
    SpecError,
    TransferError,
    write_error,
)
from hyperruntime.git.bare_repository import checked
from hyperruntime.git.store import RepositoryStore
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.json_values import parse_json
from hyperruntime.logs import get_logger
from hyperruntime.rollout.origins import SOURCES, checked_source, default_commit, fetch
from hyperruntime.sandbox import Sandbox
from hyperruntime.transfer.tar_writer import read_tree

log = get_logger(__name__)

_STORE = "repository.git"
_TAR = "workspace.tar"
_MANIFEST = "manifest.json"
_RECENT_S = 3600.0
_UNPACK_TIMEOUT_S: Final = 600.0
# A .git that the image has at this path may contain later commits.
_UNPACK = 'mkdir -p -- "$1" && rm -rf -- "$1/.git" && exec tar -xpof - -C "$1"'
_THREADS = 8


@attrs.frozen(kw_only=True)
class Checkout:
    """A commit that is ready to be unpacked in slots.

    Attributes:
        commit: full name of the commit.
        tar: path of the tar of a private clone on branch ``main``; it holds only this commit.
        repository: path of the bare repository; it holds only this commit.
    """

    commit: str
    tar: str
    repository: str

    @contextmanager
    def store(self) -> Iterator[RepositoryStore]:
        """Yield a temporary store that has this commit, for states derived from it; it is removed
        at the end.
        """
        with tempfile.TemporaryDirectory(
            prefix="hyperruntime-store-", ignore_cleanup_errors=True
        ) as directory:
            store = RepositoryStore(os.path.join(directory, _STORE))
            store.make(self.commit)
            store.borrow(os.path.join(self.repository, "objects"))
            yield store

    def _open_tar(self) -> BinaryIO:
        return open(self.tar, "rb")

    async def unpack(self, lease: Sandbox, repo_dir: str) -> None:
        """Write the clone to a directory of a slot, as the slot's user; needs ``tar`` in the image.

        Args:
            lease: the slot.
            repo_dir: relative to the workspace, or absolute; created if missing.

        Raises:
            TransferError: the clone could not be unpacked in the slot.
        """
        source = await blocking(EXECS, self._open_tar, undo=lambda file: file.close())
        with source:
            args = [
                "/bin/sh",
                "-c",
                _UNPACK,
                "unpack",
                repo_dir if repo_dir.startswith("/") else f"./{repo_dir}",
            ]
            result = await lease.exec(args, input=source, timeout_s=_UNPACK_TIMEOUT_S)
        if result.exit_code != 0:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            why = lines[-1] if lines else f"exit code {result.exit_code}"
            raise TransferError(
                f"the repository could not be unpacked at {repo_dir!r} in the slot: {why}"
            )


class Repositories:
    """A cache directory of repositories; safe for concurrent use by threads and processes.

    Attributes:
        directory: absolute path of the cache.
    """

    def __init__(
        self, cache_dir: str | os.PathLike[str] | None = None, *, fetch_timeout_s: float = 1800.0
    ) -> None:
        """Set the directory; it is not accessed yet.

        Args:
            cache_dir: the directory; None means ``repositories`` in the user's cache directory.
            fetch_timeout_s: timeout of each git command, and of the wait for another process that
                fetches.
        """
        self.directory = os.path.abspath(cache_dir or cache_directory() / "repositories")
        self._timeout_s = fetch_timeout_s
        self._verified: dict[str, tuple[int, ...]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="hyperruntime-repositories")
        self._flights: dict[tuple[str, str, str], Future[Checkout]] = {}
        self._lock = threading.Lock()

    async def aprepare(
        self, source: str | os.PathLike[str], commit: str, patch: str = ""
    ) -> Checkout:
        """Run :meth:`prepare` in a thread; concurrent calls for the same commit share one
        thread.
        """
        key = os.fspath(source), commit, patch
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = self._threads.submit(self.prepare, *key)
                flight.add_done_callback(lambda _: self._flights.pop(key, None))
        return await asyncio.shield(asyncio.wrap_future(flight))

    def prepare(self, source: str | os.PathLike[str], commit: str, patch: str = "") -> Checkout:
        """Return a commit of a repository, and fetch it if the cache does not have it.

        A damaged cache entry is fetched again. The repository of a cached commit need not exist any
        more.

        Args:
            source: a ``file://``, ``https://``, ``ssh://`` or ``git://`` URL, or the path of a
                repository.
            commit: full name of the commit; "" means that of the default branch when it was first
                fetched.
            patch: a diff; slots get a commit of the result, and nothing of the state before it.

        Raises:
            SpecError: ``source`` or ``commit`` is invalid.
            RepositoryError: the repository cannot be fetched, the commit does not exist, or the
                diff does not apply.
            StorageError: the cache cannot be used.
        """
        url = checked_source(source)
        entry = self._entry(url, commit and checked(commit), patch)
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            if not self._is_sound(entry):
                with FileLock(entry + ".lock", timeout=self._timeout_s):
                    if not self._is_sound(entry):
                        self._make(url, commit, patch, entry)
            manifest = os.path.join(entry, _MANIFEST)
            os.utime(manifest)
            made = str(parse_json(Path(manifest).read_bytes())["commit"])
        except Timeout:
            raise RepositoryError(
                f"another process still fetches {url} after {self._timeout_s:.0f} s; try again "
                "later"
            ) from None
        except HyperRuntimeError:
            raise
        except OSError as error:
            raise write_error(
                f"the repository cache {self.directory!r} cannot be used: {error}", error
            ) from error
        return Checkout(
            commit=made, tar=os.path.join(entry, _TAR), repository=os.path.join(entry, _STORE)
        )

    def size_bytes(self) -> int:
        """Return the total size of the entries in bytes."""
        return sum(entry_bytes for _, _, entry_bytes in self._entries())

    def prune(self, max_bytes: int) -> int:
        """Remove the least recently used entries until at most ``max_bytes`` are left; return the
        bytes removed.

        Entries that were used in the last hour stay, because a process may be reading them.

        Raises:
            RepositoryError: another process holds an entry for longer than the timeout.
        """
        left = self.size_bytes()
        gone = 0
        for used, entry, entry_bytes in sorted(self._entries()):
            if left <= max_bytes or time.time() - used < _RECENT_S:
                break
            try:
                with FileLock(entry + ".lock", timeout=self._timeout_s):
                    remove_tree(entry)
            except Timeout:
                why = (
                    f"another process still fetches {entry} after {self._timeout_s:.0f} s; "
                    "prune again later"
                )
                raise RepositoryError(why) from None
            left, gone = left - entry_bytes, gone + entry_bytes
        return gone

    def _entry(self, url: str, commit: str, patch: str) -> str:
        plain = url.rstrip("/").removesuffix(".git")
        name = "".join(c if c.isalnum() else "_" for c in plain.rpartition("/")[2])
        # A directory that is gone cannot say whether its name ended with .git.
        state = [plain if url.startswith("/") else url, commit, *([patch] if patch else [])]
        digest = hashlib.sha256("\0".join(state).encode()).hexdigest()[:24]
        return os.path.join(self.directory, f"{name[:40]}-{digest}")

    def _entries(self) -> Iterator[tuple[float, str, int]]:
        if not os.path.isdir(self.directory):
            return
        for found in os.scandir(self.directory):
            manifest = os.path.join(found.path, _MANIFEST)
            if found.is_dir(follow_symlinks=False) and os.path.isfile(manifest):
                files = [path for path in Path(found.path).rglob("*") if path.is_file()]
                yield (
                    os.stat(manifest).st_mtime,
                    found.path,
                    sum(path.stat().st_size for path in files),
                )

    def _make(self, url: str, commit: str, patch: str, entry: str) -> None:
        started = time.monotonic()
        if url.startswith("/") and not os.path.isdir(url):
            raise SpecError("repository", url, SOURCES)
        remove_tree(entry)
        with tempfile.TemporaryDirectory(
            prefix=".making-", dir=self.directory, ignore_cleanup_errors=True
        ) as scratch:
            fetched = os.path.join(scratch, "fetched.git")
            made = os.path.join(scratch, "made")
            commit = commit or default_commit(url, self._timeout_s)
            fetch(url, commit, fetched, self._timeout_s)
            store = RepositoryStore(os.path.join(made, _STORE))
            store.make(commit)
            store.copy_objects(commit, os.path.join(fetched, "objects"), store.path)
            if patch:
                commit = _patched(store, commit, patch)
            clone = os.path.join(scratch, "clone")
            store.checkout(commit, clone)
            with open(os.path.join(made, _TAR), "wb") as file:
                file.writelines(read_tree(clone, "."))
            _write_manifest(made, url, commit)
            os.rename(made, entry)
        log.info(
            "repository fetched",
            source=url,
            commit=commit,
            duration_s=round(time.monotonic() - started, 3),
        )

    def _is_sound(self, entry: str) -> bool:
        """Check an entry against its manifest; the files are read again only if their stat values
        change.
        """
        try:
            manifest = parse_json(Path(entry, _MANIFEST).read_bytes())
            files = manifest["files"]
            stamp = tuple(n for name in files for n in _stamp(os.path.join(entry, name)))
            if self._verified.get(entry) == stamp:
                return True
            sound = all(
                _sha256(os.path.join(entry, name)) == digest for name, digest in files.items()
            )
        except FileNotFoundError:
            return False
        except (ValueError, KeyError, TypeError, AttributeError):
            sound = False
            stamp = ()
        if sound:
            self._verified[entry] = stamp
        else:
            log.warning("repository cache entry is damaged and is made anew", entry=entry)
        return sound


def _patched(store: RepositoryStore, commit: str, patch: str) -> str:
    """Return a new commit of a store: a diff applied to another commit, which is not reachable from
    clones.
    """
    try:
        result = store.apply_patch(commit, patch.encode(), "patched")
    except PatchError as error:
        raise RepositoryError(f"the patch does not apply to commit {commit}: {error}") from error
    if result.dropped:
        raise RepositoryError(
            f"the patch cannot be applied to commit {commit}: {': '.join(result.dropped[0])}"
        )
    return result.commit


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
