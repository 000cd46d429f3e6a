"""Git on the host has a deadline, and ends with the process that started it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hyperruntime.errors import SpecError
from hyperruntime.git.command import GitTimeoutError, git, git_timeout_s
from hyperruntime.git.store import RepositoryStore
from hyperruntime.host.process import wait_until

# In a child, so that the signal ends only that; the second git starts a program that leaves its session.
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
    for process in marked(mark):
        process.kill()


def marked(mark: str) -> list[psutil.Process]:
    """Return the other processes with a mark in their environment, except keepers."""
    found = []
    for process in psutil.process_iter(["pid", "environ", "cmdline"]):
        name = " ".join(process.info["cmdline"] or ())
        if mark in str(process.info["environ"]) and process.pid != os.getpid() and "hyperruntime-keeper" not in name:
            found.append(process)
    return found


def named(mark: str, name: str) -> bool:
    return any(name in " ".join(process.cmdline()) for process in marked(mark) if process.is_running())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_git_and_its_children_end_with_the_process_that_started_it(
    number: signal.Signals, mark: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")  # a program that opens it waits for ever
    with subprocess.Popen([sys.executable, "-c", CALLER, str(tmp_path / "pipe")], stderr=subprocess.DEVNULL) as caller:
        assert wait_until(lambda: named(mark, "git config") and named(mark, "cat"), 120)
        caller.send_signal(number)
        caller.wait()
    assert wait_until(lambda: not marked(mark), 120)


def test_a_process_that_used_git_leaves_no_process(mark: str) -> None:
    script = "from hyperruntime.git.command import git; git(['--version'])"
    subprocess.run([sys.executable, "-c", script], check=True)
    keepers = [process for process in psutil.process_iter(["environ"]) if mark in str(process.info["environ"])]
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


def test_a_diff_that_makes_git_slow_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "slow").write_text("x\n" * 2_000_000)
    store = RepositoryStore(tmp_path / "store.git")
    root = store.from_directory(tmp_path / "files")
    monkeypatch.setenv("HYPERRUNTIME_GIT_TIMEOUT_S", "5")
    with pytest.raises(GitTimeoutError, match="git apply did not end"):
        store.apply_patch(root, slow_diff(2_000_000, 400_000), 1)
    assert store.apply_patch(root, b"", 2).commit == root
