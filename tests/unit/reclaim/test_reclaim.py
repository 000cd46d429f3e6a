"""Reclaiming makes the files of a container harmless and gives them to their user; it changes no
other file.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperruntime.errors import ReclaimError
from hyperruntime.reclaim import walk
from hyperruntime.reclaim.trees import reclaim_trees, remove_reclaimed
from hyperruntime.reclaim.walk import reclaim_tree

DEPTH = 3000  # more than the limit of open file descriptors, and than a path can name
IS_ROOT = os.geteuid() == 0
# A vfs_cap_data of revision 2 with CAP_SETUID. Source: linux/capability.h.
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0)


def soon() -> float:
    return time.monotonic() + 60


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree below a directory of this user."""
    path = tmp_path / "it's private" / "tree"
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize("kind", ["file", "fifo", "socket", "directory"])
@pytest.mark.parametrize("mode", [0o6755, 0o4711, 0o2777, 0o7000, 0o1777, 0])
def test_special_bits_are_removed_and_the_user_may_read_and_write(
    tree: Path, kind: str, mode: int
) -> None:
    path = tree / "odd \udcff\n name"
    make: dict[str, Callable[[], object]] = {
        "file": path.touch,
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "socket": lambda: bind(path),
    }
    make[kind]()
    path.chmod(mode)
    reclaim_tree(str(tree), soon())
    kept, given = (0o1777, 0o700) if kind == "directory" else (0o777, 0o600)
    assert mode_of(path) == mode & kept | given


def bind(path: Path) -> None:
    """Make a socket, also at a path that is too long for bind()."""
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(path.parent, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/s")
        os.close(here)
    (path.parent / "s").rename(path)


def test_directories_that_nobody_may_enter_are_reclaimed(tree: Path) -> None:
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/shell").touch()
    (tree / "a/b/shell").chmod(0o6755)
    for path in (tree / "a/b", tree / "a", tree):
        path.chmod(0)
    reclaim_tree(str(tree), soon())
    assert [mode_of(path) for path in (tree, tree / "a", tree / "a/b", tree / "a/b/shell")] == [
        0o700
    ] * 3 + [0o755]


def test_a_file_with_two_names_is_reclaimed(tree: Path) -> None:
    (tree / "one").touch()
    (tree / "two").hardlink_to(tree / "one")
    (tree / "one").chmod(0o4755)
    reclaim_tree(str(tree), soon())
    assert mode_of(tree / "two") == 0o755


def test_files_outside_the_tree_are_not_changed(tree: Path) -> None:
    outside = tree.parent / "outside"
    (outside / "below").mkdir(parents=True)
    (outside / "shell").touch()
    for path in (outside / "shell", outside / "below", outside):
        path.chmod(0o6755)
    (tree / "file").symlink_to(outside / "shell")
    (tree / "directory").symlink_to(outside)
    (tree / "up").symlink_to("..")
    reclaim_tree(str(tree), soon())
    assert {mode_of(path) for path in (outside, outside / "below", outside / "shell")} == {0o6755}
    assert sorted(os.listdir(tree)) == ["directory", "file", "up"]


def test_a_link_in_place_of_the_tree_is_not_followed(tree: Path) -> None:
    (tree / "shell").touch()
    (tree / "shell").chmod(0o6755)
    (tree.parent / "link").symlink_to(tree)
    reclaim_tree(str(tree.parent / "link"), soon())
    assert mode_of(tree / "shell") == 0o6755


def test_a_tree_may_be_deeper_than_any_path(tree: Path) -> None:
    here = os.open(tree, os.O_RDONLY)
    try:
        for _ in range(DEPTH):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("shell", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.chmod(f"/proc/self/fd/{here}/shell", 0o6755)
        reclaim_tree(str(tree), soon())
        assert stat.S_IMODE(os.stat("shell", dir_fd=here).st_mode) == 0o755
    finally:
        os.close(here)
    remove_reclaimed(tree, ())
    assert not tree.exists()


def test_a_tree_that_takes_too_long_raises_a_timeout_error(tree: Path) -> None:
    (tree / "file").touch()
    with pytest.raises(TimeoutError):
        reclaim_tree(str(tree), time.monotonic() - 1)


def test_a_directory_that_moves_during_the_walk_does_not_lead_outside(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tree.parent / "outside"
    outside.mkdir()
    (outside / "shell").touch()
    (outside / "shell").chmod(0o6755)
    (tree / "a/b").mkdir(parents=True)
    (tree / "later").touch()
    (tree / "later").chmod(0o6755)
    opened = walk._Walk._names

    def move(self: walk._Walk, directory: int) -> list[str]:
        names = opened(self, directory)
        if (tree / "a/b").exists() and os.path.samestat(os.fstat(directory), (tree / "a/b").stat()):
            (tree / "a/b").rename(outside / "b")  # from now on, its `..` is another directory
        return names

    monkeypatch.setattr(walk._Walk, "_names", move)
    reclaim_tree(str(tree), soon())
    assert (outside / "b").exists()
    assert (mode_of(outside / "shell"), mode_of(tree / "later")) == (0o6755, 0o755)


def test_a_directory_that_a_process_closes_again_is_retried(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "d").mkdir()
    refused: list[int] = []
    reopen = walk._reopen

    def shut(handle: int) -> int:
        if len(refused) < 3:
            refused.append(handle)
            raise walk._MovedError  # as with an agent's process that changes the mode in a loop
        return reopen(handle)

    monkeypatch.setattr(walk, "_reopen", shut)
    reclaim_tree(str(tree), soon())
    assert len(refused) == 3


def test_names_that_appear_and_disappear_are_not_an_error(tree: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            (tree / "d").mkdir(exist_ok=True)
            (tree / "d/f").touch()
            (tree / "d/f").chmod(0o6755)
            (tree / "d/f").unlink()
            (tree / "d").rmdir()
            (tree / "d").symlink_to("/etc")
            (tree / "d").unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            reclaim_tree(str(tree), soon())
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not IS_ROOT, reason="only root can give files away")
def test_files_of_other_users_get_the_owner_of_the_parent_directory(tree: Path) -> None:
    (tree / "sub").mkdir()
    (tree / "sub/shell").touch()
    (tree / "sub/link").symlink_to("shell")
    os.mkfifo(tree / "sub/fifo")
    for path in (tree / "sub/shell", tree / "sub/link", tree / "sub/fifo", tree / "sub", tree):
        os.chown(path, 20001, 20001, follow_symlinks=False)
    (tree / "sub/shell").chmod(0o6755)
    os.chown(tree.parent, 1234, -1)
    reclaim_tree(str(tree), soon())
    assert {path.lstat().st_uid for path in (tree, *tree.rglob("*"))} == {1234}
    assert mode_of(tree / "sub/shell") == 0o755


@pytest.mark.skipif(not IS_ROOT, reason="only root can give capabilities to files")
@pytest.mark.parametrize("mode", [0o755, 0o644, 0o4755])
def test_file_capabilities_are_removed(tree: Path, mode: int) -> None:
    path = tree / "program"
    path.touch()
    path.chmod(mode)
    os.setxattr(path, "security.capability", CAPABILITY)
    os.setxattr(path, "user.kept", b"1")
    reclaim_tree(str(tree), soon())
    assert os.listxattr(path) == ["user.kept"]
    assert mode_of(path) == mode & 0o777


def test_the_program_reclaims_a_tree_and_reports_errors(tree: Path) -> None:
    (tree / "shell").touch()
    (tree / "shell").chmod(0o6755)
    run = [sys.executable, "-I", "-S", walk.__file__]
    assert subprocess.run([*run, "60", str(tree)], cwd="/", capture_output=True).stderr == b""
    assert mode_of(tree / "shell") == 0o755
    late = subprocess.run([*run, "-1", str(tree)], cwd="/", capture_output=True, text=True)
    assert (late.returncode, late.stderr.partition(":")[0]) == (1, "TimeoutError")
    gone = subprocess.run(
        [*run, "60", str(tree / "none/below")], cwd="/", capture_output=True, text=True
    )
    assert (gone.returncode, gone.stderr.partition(":")[0]) == (1, "FileNotFoundError")


def test_a_missing_tree_is_not_an_error(tmp_path: Path) -> None:
    reclaim_trees([tmp_path / "none", tmp_path / "none/below"], (), 60)
    remove_reclaimed(tmp_path / "none", ())


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a process without the rights to change files of other users."""

    def denied(path: str, until: float) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(walk, "reclaim_tree", denied)


@pytest.mark.usefixtures("refuse")
def test_the_arguments_of_the_driver_come_before_the_program(tree: Path) -> None:
    (tree / "shell").touch()
    (tree / "shell").chmod(0o6755)
    reclaim_trees([tree], ("env",), 60)
    assert mode_of(tree / "shell") == 0o755


@pytest.mark.usefixtures("refuse")
@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), "may not change"),
        (("false",), "cannot be reclaimed: exit code 1; see `hyperrun doctor`"),
        (("sh", "-c", "echo no such namespace >&2; exit 125"), "no such namespace"),
        (("/there/is/no/such/program",), "cannot be started"),
    ],
)
def test_missing_rights_are_reported(tree: Path, args: tuple[str, ...], text: str) -> None:
    with pytest.raises(ReclaimError, match=text):
        reclaim_trees([tree], args, 60)


@pytest.mark.usefixtures("refuse")
def test_the_timeout_of_the_caller_applies_to_the_program(tree: Path) -> None:
    (tree / "file").touch()
    with pytest.raises(TimeoutError):
        reclaim_trees([tree], ("env",), -1)


def test_a_directory_that_its_owner_may_not_enter_is_removed(tree: Path) -> None:
    (tree / "shut/below").mkdir(parents=True)
    (tree / "shut/below/file").touch()
    (tree / "shut/below").chmod(0o300)
    (tree / "shut").chmod(0)
    remove_reclaimed(tree, ())
    assert not tree.exists()
