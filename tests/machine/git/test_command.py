"""Git on the host has a deadline, and ends with the process that started it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hyperruntime.errors import PatchError, RepositoryError, SpecError
from hyperruntime.git import command
from hyperruntime.git.command import GitTimeoutError, git, git_timeout_s
from hyperruntime.git.store import RepositoryStore
from hyperruntime.host.process import wait_until
from tests.processes import command_line, end

# In a child, so that the signal ends only that; the second git starts a program that leaves its
# session.
CALLER = """
import sys, threading
from hyperruntime.git.command import git
threading.Thread(target=git, args=(["config", "--file", sys.argv[1], "--list"],), daemon=True).start()
git(["-c", "alias.hang=!setsid cat " + sys.argv[1] + "; :", "hang"])
"""


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark the environment of the processes of a test; end those that are left."""
    mark = f"mark-{secrets.token_hex(8)}"
    monkeypatch.setenv("OF_THE_TEST", mark)
    yield mark
    end(marked(mark))


def marked(mark: str) -> list[psutil.Process]:
    """Return the other processes with a mark in their environment, except keepers."""
    found = []
    for process in psutil.process_iter(["pid", "environ", "cmdline"]):
        name = " ".join(process.info["cmdline"] or ())
        if (
            mark in str(process.info["environ"])
            and process.pid != os.getpid()
            and "hyperruntime-keeper" not in name
        ):
            found.append(process)
    return found


def named(mark: str, name: str) -> bool:
    return any(name in " ".join(command_line(process)) for process in marked(mark))


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name
)
def test_git_and_its_children_end_with_the_process_that_started_it(
    number: signal.Signals, mark: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")  # a program that opens it waits for ever
    with subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path / "pipe")], stderr=subprocess.DEVNULL
    ) as caller:
        assert wait_until(lambda: named(mark, "git config") and named(mark, "cat"), 120)
        caller.send_signal(number)
        caller.wait()
    assert wait_until(lambda: not marked(mark), 120)


def below(caller: subprocess.Popen[bytes], name: str) -> list[psutil.Process]:
    """Return the running processes with a name that a process started, and those that they
    started.
    """
    found = []
    for process in psutil.Process(caller.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += (
                [process]
                if process.name() == name and process.status() != psutil.STATUS_ZOMBIE
                else []
            )
    return found


def keepers(mark: str) -> int:
    found = psutil.process_iter(["environ", "cmdline"])
    return sum(
        mark in str(one.info["environ"]) and "hyperruntime-keeper" in (one.info["cmdline"] or ())
        for one in found
    )


def test_the_git_of_another_process_goes_on(mark: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    args = [sys.executable, "-c", CALLER, str(tmp_path / "pipe")]
    with (
        subprocess.Popen(args, stderr=subprocess.DEVNULL) as stays,
        subprocess.Popen(args, stderr=subprocess.DEVNULL) as ends,
    ):
        try:
            assert wait_until(
                lambda: all(
                    len(below(one, "git")) == 2 and below(one, "cat") for one in (stays, ends)
                ),
                120,
            )
            ends.kill()
            assert wait_until(lambda: keepers(mark) == 1, 120), (
                "the keeper of the killed process has not ended"
            )
            assert (len(below(stays, "git")), len(below(stays, "cat")), stays.poll()) == (
                2,
                1,
                None,
            )
        finally:
            stays.kill()
            ends.kill()


def test_a_process_that_used_git_leaves_no_process(mark: str) -> None:
    script = "from hyperruntime.git.command import git; git(['--version'])"
    subprocess.run([sys.executable, "-c", script], check=True)
    keepers = [
        process
        for process in psutil.process_iter(["environ"])
        if mark in str(process.info["environ"])
    ]
    assert [process.pid for process in keepers if process.pid != os.getpid()] == []


def test_a_git_command_that_takes_too_long_is_ended_with_its_children(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("HYPERRUNTIME_GIT_TIMEOUT_S", "0.5")
    with pytest.raises(
        GitTimeoutError, match=r"^git hang did not end within \d+ s .*HYPERRUNTIME_GIT_TIMEOUT_S"
    ) as error:
        git(["-c", f"alias.hang=!cat '{tmp_path}/pipe'; :", "hang"])
    assert error.value.exit_code == 2
    assert wait_until(lambda: not marked(mark), 120)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_an_invalid_deadline_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERRUNTIME_GIT_TIMEOUT_S", text)
    with pytest.raises(SpecError, match="HYPERRUNTIME_GIT_TIMEOUT_S"):
        git_timeout_s()


def slow_diff(lines: int, context: int) -> bytes:
    """Return a diff that fits nowhere in a file of equal lines, and that git tries everywhere."""
    around, at = " x\n" * context, lines // 2
    header = f"--- a/slow\n+++ b/slow\n@@ -{at},{2 * context + 1} +{at},{2 * context} @@\n"
    return f"{header}{around}-y\n{around}".encode()


def test_a_diff_that_makes_git_slow_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "slow").write_text("x\n" * 2_000_000)
    store = RepositoryStore(tmp_path / "store.git")
    root = store.from_directory(tmp_path / "files")
    monkeypatch.setenv("HYPERRUNTIME_GIT_TIMEOUT_S", "5")
    with pytest.raises(GitTimeoutError, match="git apply did not end"):
        store.apply_patch(root, slow_diff(2_000_000, 400_000), 1)
    assert store.apply_patch(root, b"", 2).commit == root


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """Make a repository of a few kilobytes whose commit has a billion files."""
    root = tmp_path / "bomb"
    git(["init", "-q", "--template=", "--", str(root)])

    def made(*args: str, text: bytes = b"") -> str:
        return git(["-C", str(root), *args], input=text).decode().strip()

    kind, name = "100644 blob", made("hash-object", "-w", "--stdin", text=b"x\n")
    for _ in range(9):
        name = made(
            "mktree", text="".join(f"{kind} {name}\t{number}\n" for number in range(10)).encode()
        )
        kind = "040000 tree"
    made("update-ref", "HEAD", made("commit-tree", "-m", "bomb", name))
    return root


def test_a_repository_with_a_billion_files_takes_no_memory_of_the_machine(
    bomb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_memory_bytes", lambda: 64 << 20)
    # without the limit it takes memory until it is ended
    monkeypatch.setenv("HYPERRUNTIME_GIT_TIMEOUT_S", "30")
    for args in (["read-tree", "HEAD"], ["status", "--porcelain=v1", "-z"]):
        with pytest.raises(RepositoryError, match=rf"git {args[0]} failed: .*[Oo]ut of memory"):
            git(["-C", str(bomb), *args])
    with pytest.raises(RepositoryError, match=r"git status failed in .*[Oo]ut of memory"):
        RepositoryStore(tmp_path / "store.git").add_repository(bomb)


def test_git_that_writes_more_than_fits_into_memory_is_ended(
    bomb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_MOST_OUTPUT_BYTES", 1 << 20)
    monkeypatch.setenv("HYPERRUNTIME_GIT_TIMEOUT_S", "30")
    with pytest.raises(
        RepositoryError, match="git ls-tree wrote more than 1048576 bytes and was ended"
    ) as caught:
        git(["-C", str(bomb), "ls-tree", "-r", "HEAD"])
    assert "\n" not in str(caught.value)


def test_a_large_input_and_output_of_git_are_whole(tmp_path: Path) -> None:
    git(["init", "-q", "--bare", "--template=", "--", str(tmp_path)])
    data = os.urandom(5 << 20)
    name = git(["-C", str(tmp_path), "hash-object", "-w", "--stdin"], input=data).decode().strip()
    assert git(["-C", str(tmp_path), "cat-file", "blob", name]) == data


def test_a_large_gitignore_of_a_state_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / ".gitignore").write_bytes(b"a*b\n" * (1 << 20))
    store = RepositoryStore(tmp_path / "store.git")
    root = store.from_directory(files)
    (files / "new").write_text("x")
    monkeypatch.setattr(RepositoryStore, "read_blobs", None)
    with pytest.raises(
        PatchError, match=r"the .gitignore files of the parent have 4194304 bytes in all"
    ):
        store.snapshot(root, files, 1)
