"""The repository cache: what it fetches and keeps, and what a checkout exposes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from hyperruntime.errors import RepositoryError, SpecError
from hyperruntime.git.command import git
from hyperruntime.host.process import run_process
from hyperruntime.rollout.origins import source_of
from hyperruntime.rollout.repositories import Checkout, Repositories
from hyperruntime.spec import ExecResult


def make_origin(where: Path) -> list[str]:
    """Create a repository with three commits; return them, oldest first."""
    git(["init", "-q", "--template=", "--initial-branch=main", "--", str(where)])
    commits = []
    for number in range(3):
        (where / "number.txt").write_text(f"{number}\n")
        (where / "run me.sh").write_text("#!/bin/sh\n")
        (where / "run me.sh").chmod(0o755)
        git(["-C", str(where), "add", "--all"])
        git(["-C", str(where), "commit", "-q", "-m", f"commit {number}"])
        commits.append(git(["-C", str(where), "rev-parse", "HEAD"]).decode().strip())
    return commits


def prepared(folder: Path, commit: str, patch: str = "") -> Checkout:
    """Return a commit of the repository ``origin``, from a cache beside it."""
    return Repositories(folder / "cache").prepare(folder / "origin", commit, patch)


def unpacked(tar: str, where: Path) -> Path:
    """Unpack the tar of a checkout and return its directory."""
    where.mkdir(exist_ok=True)
    subprocess.run(["tar", "-xf", tar, "-C", where], check=True)
    return where


@pytest.mark.parametrize("form", ["path", "file", "bare"])
def test_a_checkout_contains_one_commit_without_its_ancestors_and_descendants(
    tmp_path: Path, form: str
) -> None:
    """R8: the agent cannot find the fix in a later commit."""
    origin = tmp_path / "ori gin"
    commits = make_origin(origin)
    if form == "bare":
        git(
            ["clone", "-q", "--bare", "--", str(origin), str(tmp_path / "bare.git")],
            env={"GIT_ALLOW_PROTOCOL": "file"},
        )
        origin = tmp_path / "bare.git"
    source = f"file://{origin}".replace(" ", "%20") if form == "file" else str(origin)
    checkout = Repositories(tmp_path / "cache").prepare(source, commits[1])
    work = unpacked(checkout.tar, tmp_path / "work")
    inside = ["-C", str(work)]
    assert (work / "number.txt").read_text() == "1\n"
    assert os.access(work / "run me.sh", os.X_OK)
    assert git([*inside, "rev-list", "--all"]).decode().split() == [commits[1]]
    assert git([*inside, "symbolic-ref", "HEAD"]) == b"refs/heads/main\n"
    assert git([*inside, "status", "--porcelain"]) == b""
    objects = git([*inside, "cat-file", "--batch-all-objects", "--batch-check"]).decode()
    assert commits[0] not in objects
    assert commits[2] not in objects
    assert str(tmp_path) not in (work / ".git" / "config").read_text()
    assert not (work / ".git" / "objects" / "info" / "alternates").exists()


def test_a_cached_commit_is_not_fetched_again(tmp_path: Path) -> None:
    """R8: the commit is still available after the origin was removed, also to another process."""
    commits = make_origin(tmp_path / "origin")
    first = Repositories(tmp_path / "cache").prepare(f"file://{tmp_path}/origin", commits[2])
    shutil.rmtree(tmp_path / "origin")
    second = Repositories(tmp_path / "cache").prepare(f"file://{tmp_path}/origin", commits[2])
    assert second == first
    assert (unpacked(second.tar, tmp_path / "work") / "number.txt").read_text() == "2\n"


@pytest.mark.parametrize("place", ["own/er", "own/er.git"])
def test_a_cached_commit_outlives_the_directory_of_its_repository(
    tmp_path: Path, place: str
) -> None:
    """A share with repositories need not be mounted any more; a commit that is not cached still
    needs it.
    """
    commits = make_origin(tmp_path / "share" / place)
    first = Repositories(tmp_path / "cache").prepare(
        source_of("own/er", str(tmp_path / "share")), commits[2]
    )
    shutil.rmtree(tmp_path / "share")
    source = source_of("own/er", str(tmp_path / "share"))
    assert Repositories(tmp_path / "cache").prepare(source, commits[2]) == first
    with pytest.raises(SpecError, match="path of a git repository"):
        Repositories(tmp_path / "cache").prepare(source, commits[1])


def test_a_patch_on_the_default_branch_is_all_that_a_slot_gets(tmp_path: Path) -> None:
    """A row of SWE-smith names no commit, and its patch is the bug; its reverse would be the
    solution.
    """
    commits = make_origin(tmp_path / "origin")
    bug = "--- a/number.txt\n+++ b/number.txt\n@@ -1 +1 @@\n-2\n+broken\n"
    checkout = prepared(tmp_path, "", bug)
    shutil.rmtree(tmp_path / "origin")
    assert prepared(tmp_path, "", bug) == checkout
    work = unpacked(checkout.tar, tmp_path / "work")
    assert (work / "number.txt").read_text() == "broken\n"
    inside = ["-C", str(work)]
    assert git([*inside, "rev-list", "--all"]).decode().split() == [checkout.commit]
    assert git([*inside, "status", "--porcelain"]) == b""
    objects = git([*inside, "cat-file", "--batch-all-objects", "--batch-check"]).decode()
    assert commits[2] not in objects
    assert git([*inside, "hash-object", "--stdin"], input=b"2\n").decode().strip() not in objects
    with checkout.store() as store:
        assert store.read_file(checkout.commit, "number.txt") == b"broken\n"


def test_a_patch_that_does_not_apply_raises_an_error(tmp_path: Path) -> None:
    commits = make_origin(tmp_path / "origin")
    with pytest.raises(RepositoryError, match=f"does not apply to commit {commits[0]}"):
        prepared(tmp_path, commits[0], "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-2\n+3\n")


def test_eight_processes_can_prepare_one_repository_at_the_same_time(tmp_path: Path) -> None:
    """R8: one process fetches, the others wait for it."""
    commits = make_origin(tmp_path / "origin")
    program = (
        "import sys; from hyperruntime.rollout.repositories import Repositories as R;"
        "print(R(sys.argv[1]).prepare(sys.argv[2], sys.argv[3]).tar)"
    )
    args = [
        sys.executable,
        "-c",
        program,
        str(tmp_path / "cache"),
        str(tmp_path / "origin"),
        commits[0],
    ]
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: run_process(args), range(8)))
    assert [result.exit_code for result in results] == [0] * 8, results[0].stderr
    assert len({result.stdout for result in results}) == 1


def test_concurrent_tasks_with_the_same_commit_share_one_fetch(tmp_path: Path) -> None:
    """R8: if one task of a group is cancelled, the others still get the checkout."""
    commits = make_origin(tmp_path / "origin")
    repositories = Repositories(tmp_path / "cache")

    async def group() -> list[Any]:
        tasks = [
            asyncio.create_task(repositories.aprepare(tmp_path / "origin", commits[1]))
            for _ in range(20)
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(group())
    assert isinstance(first, asyncio.CancelledError)
    assert len({id(checkout) for checkout in others}) == 1
    assert others[0].commit == commits[1]


def answers(port: int) -> bool:
    """Return whether a server listens on a port of the loopback interface."""
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A git server on the loopback interface for the repositories below a directory; yields its URL
    and process.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    args = [
        "git",
        "daemon",
        "--listen=127.0.0.1",
        f"--port={port}",
        "--export-all",
        f"--base-path={tmp_path}",
    ]
    server = subprocess.Popen(args, start_new_session=True)
    try:
        while not answers(port):
            assert server.poll() is None, "git daemon has ended"
        yield f"git://127.0.0.1:{port}", server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_a_fetch_over_the_network_gets_one_commit_and_happens_once(
    tmp_path: Path, daemon: tuple[str, subprocess.Popen[bytes]]
) -> None:
    """R8: the cached commit is available after the server ended; earlier commits were not
    fetched.
    """
    url, server = daemon
    commits = make_origin(tmp_path / "own" / "origin.git")
    source = source_of("own/origin", url)
    checkout = Repositories(tmp_path / "cache").prepare(source, commits[1])
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    assert Repositories(tmp_path / "cache").prepare(source, commits[1]) == checkout
    with checkout.store() as store:
        assert store.read_file(commits[1], "number.txt") == b"1\n"
        assert store.git("rev-list", commits[1]).decode().split() == [commits[1]]
    with pytest.raises(RepositoryError, match="cannot be fetched"):
        Repositories(tmp_path / "cache").prepare(source, commits[0])


@pytest.mark.parametrize("name", ["workspace.tar", "repository.git/objects/pack", "manifest.json"])
def test_a_damaged_cache_entry_is_made_again(tmp_path: Path, name: str) -> None:
    """A file that a disk corrupted, or that a user edited, does not reach a slot."""
    commits = make_origin(tmp_path / "origin")
    checkout = prepared(tmp_path, commits[0])
    damaged = Path(checkout.tar).parent / name
    damaged = next(damaged.glob("*.pack")) if damaged.is_dir() else damaged
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 255
    damaged.chmod(0o644)
    damaged.write_bytes(content)
    again = prepared(tmp_path, commits[0])
    assert (unpacked(again.tar, tmp_path / "work") / "number.txt").read_text() == "0\n"
    with again.store() as store:
        assert store.read_file(commits[0], "number.txt") == b"0\n"


def test_a_snapshot_does_not_change_the_cache(tmp_path: Path) -> None:
    """W22: the changes of one agent are not visible to the next."""
    commits = make_origin(tmp_path / "origin")
    checkout = prepared(tmp_path, commits[0])
    before = sorted((path, path.stat().st_size) for path in (tmp_path / "cache").rglob("*"))
    work = unpacked(checkout.tar, tmp_path / "work")
    (work / "number.txt").write_text("17\n")
    with checkout.store() as store:
        snapshot = store.snapshot(commits[0], work, "agent")
        assert b"+17" in snapshot.patch
    assert sorted((path, path.stat().st_size) for path in (tmp_path / "cache").rglob("*")) == before


@pytest.mark.parametrize(
    "source", ["ext::sh -c 'touch /tmp/x'", "http://a/b", "https://a b", "--upload-pack=x", ""]
)
def test_invalid_sources_are_rejected(tmp_path: Path, source: str) -> None:
    """W24: text of an item never becomes an option or a program."""
    with pytest.raises(SpecError):
        Repositories(tmp_path).prepare(source, "0" * 40)


@pytest.mark.parametrize("commit", ["HEAD", "--depth=1", "0" * 39, "0" * 40 + "\n", "$(touch x)"])
def test_invalid_commits_are_rejected(tmp_path: Path, commit: str) -> None:
    """W24."""
    make_origin(tmp_path / "origin")
    with pytest.raises(SpecError):
        prepared(tmp_path, commit)


@pytest.mark.parametrize("repo", ["a/b/c", "../x", "a/..;x", "a", "a/$(x)", "-a/b"])
def test_invalid_repository_names_are_rejected(repo: str) -> None:
    """W24."""
    with pytest.raises(SpecError):
        source_of(repo, "https://example.org")


def test_a_repository_name_is_resolved_below_a_base(tmp_path: Path) -> None:
    """The name becomes OWNER/NAME.git below a URL; below a directory, OWNER/NAME works too."""
    make_origin(tmp_path / "own" / "er")
    assert source_of("own/er", "https://example.org/") == "https://example.org/own/er.git"
    assert source_of("own/er", str(tmp_path)) == str(tmp_path / "own" / "er")


def test_a_missing_commit_raises_an_error_and_leaves_no_cache_entry(tmp_path: Path) -> None:
    make_origin(tmp_path / "origin")
    with pytest.raises(RepositoryError, match="no commit 1111"):
        prepared(tmp_path, "1" * 40)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_prune_removes_the_least_recently_used_entries(tmp_path: Path) -> None:
    """Entries that were used in the last hour stay."""
    commits = make_origin(tmp_path / "origin")
    repositories = Repositories(tmp_path / "cache")
    found = [repositories.prepare(tmp_path / "origin", commit) for commit in commits]
    for age, checkout in zip((9000, 8000, 0), found, strict=True):
        manifest = Path(checkout.tar).parent / "manifest.json"
        time = manifest.stat().st_mtime - age
        os.utime(manifest, (time, time))
    whole = repositories.size_bytes()
    assert 0 < repositories.prune(whole - 1) < whole
    assert [os.path.exists(checkout.tar) for checkout in found] == [False, True, True]
    repositories.prune(0)
    assert [os.path.exists(checkout.tar) for checkout in found] == [False, False, True]


def test_prune_reports_an_entry_that_another_process_is_fetching(tmp_path: Path) -> None:
    commit = make_origin(tmp_path / "origin")[0]
    entry = Path(prepared(tmp_path, commit).tar).parent
    os.utime(entry / "manifest.json", (0, 0))
    with (
        FileLock(f"{entry}.lock"),
        pytest.raises(RepositoryError, match=r"another process still fetches .*again"),
    ):
        Repositories(tmp_path / "cache", fetch_timeout_s=0.1).prune(0)
    assert entry.is_dir()


class Unpacks:
    """A lease that only reads what it is given to unpack."""

    def __init__(self) -> None:
        self.got = b""

    async def exec(self, args: list[str], *, input: Any, timeout_s: float) -> ExecResult:  # noqa: A002 - as a lease
        self.got = await asyncio.to_thread(input.read)
        return ExecResult(args=tuple(args), exit_code=0, stdout=b"", stderr=b"")


@pytest.mark.timeout(60)  # a blocked loop never comes to the writer that the reader waits for
async def test_a_checkout_that_cannot_be_opened_yet_does_not_block_the_loop(tmp_path: Path) -> None:
    tar = tmp_path / "workspace.tar"
    os.mkfifo(tar)
    lease: Any = Unpacks()

    unpacking = asyncio.create_task(
        Checkout(commit="", tar=str(tar), repository="").unpack(lease, "repo")
    )
    while not unpacking.done():
        await asyncio.sleep(0.01)
        with suppress(OSError):  # nobody reads yet, or any more
            writer = os.open(tar, os.O_WRONLY | os.O_NONBLOCK)
            os.write(writer, b"a tar")
            os.close(writer)
            break
    await unpacking
    assert lease.got == b"a tar"
