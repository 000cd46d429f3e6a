"""The repository store keeps states exactly and safely, with any files that a container left in its
clone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperruntime.errors import PatchError, RepositoryError, SpecError
from hyperruntime.git.change_rules import ChangeRules
from hyperruntime.git.store import RepositoryStore, inspect_repository
from hyperruntime.git.worktree import WorkTree, compare
from hyperruntime.host.keeper import run_kept
from hyperruntime.host.process import ProcessResult, wait_until
from tests.machine.git.plain_git import CALM, EDITOR


def git(where: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", *args], cwd=where, env=CALM | EDITOR, capture_output=True, check=True
    )
    return done.stdout.decode(errors="surrogateescape")


def contents(root: Path) -> dict[str, tuple[str, bytes]]:
    """Return the files that git would keep: kind and bytes of each file and link."""
    found = {}
    for directory, names, files in os.walk(root):
        if ".git" in names:
            names.remove(".git")
        for name in [
            *files,
            *(name for name in names if os.path.islink(os.path.join(directory, name))),
        ]:
            path = Path(directory, name)
            if path.is_symlink():
                entry = ("link", os.fsencode(path.readlink()))
            else:
                entry = ("x" if path.stat().st_mode & 0o100 else "-", path.read_bytes())
            found[str(path.relative_to(root))] = entry
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Make a user's agent repository with two commits."""
    root = tmp_path / "the agent's repo"
    (root / "domains" / "maze").mkdir(parents=True)
    for name, text in {
        "task_agent.py": "print('task')\n" * 30,
        "domains/maze/score.py": "SECRET = 1\n",
        ".gitignore": "outputs/\n*.log\n",
        ".gitattributes": "*.win text eol=crlf ident\n*.dat filter=evil diff=evil\n",
        "dos.txt": "one\r\ntwo\r\n",
        "link.d/keep": "",
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(text.encode())
    (root / "domains" / "here").symlink_to("maze")
    git(root, "init", "-q", "-b", "trunk")
    git(root, "-c", "core.autocrlf=false", "add", "--all")
    git(root, "commit", "-qm", "first")
    git(root, "commit", "-qm", "second", "--allow-empty")
    return root


@pytest.fixture
def store(tmp_path: Path) -> RepositoryStore:
    return RepositoryStore(tmp_path / "a run" / "repository.git")


@pytest.fixture
def root(store: RepositoryStore, source: Path) -> str:
    return store.add_repository(source)


@pytest.fixture
def clone(store: RepositoryStore, root: str, tmp_path: Path) -> Path:
    store.checkout(root, tmp_path / "clone")
    return tmp_path / "clone"


def test_a_repository_is_added_at_its_commit_without_its_history(
    store: RepositoryStore, source: Path, root: str
) -> None:
    assert root == git(source, "rev-parse", "HEAD").strip()
    assert git(Path(store.path), "rev-list", "--all").split() == [root]
    assert git(Path(store.path), "fsck", "--full", "--strict") == ""
    assert store.add_repository(source) == root


@pytest.mark.parametrize("kind", ["detached", "worktree", "submodule"])
def test_detached_heads_worktrees_and_submodules_can_be_added(
    kind: str, store: RepositoryStore, source: Path, tmp_path: Path
) -> None:
    head, where = git(source, "rev-parse", "HEAD").strip(), source
    if kind == "detached":
        git(source, "checkout", "-q", "--detach")
    elif kind == "worktree":
        where = tmp_path / "work:tree"
        git(source, "worktree", "add", "-q", "--detach", str(where))
    else:
        git(tmp_path, "init", "-q", "outer")
        git(
            tmp_path / "outer",
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "-q",
            "add",
            str(source),
            "inner",
        )
        where = tmp_path / "outer" / "inner"
    assert store.add_repository(where) == head


@pytest.mark.parametrize("committed", [True, False])
def test_the_dotenv_file_of_a_repository_is_not_added(
    store: RepositoryStore, source: Path, tmp_path: Path, *, committed: bool
) -> None:
    clean = RepositoryStore(tmp_path / "clean.git")
    expected = clean.tree(clean.add_repository(source))
    (source / ".env").write_text("OPENAI_API_KEY=sk-1234567890\n")
    if committed:
        git(source, "add", "--force", ".env")
        git(source, "commit", "-q", "-m", "oops")
        (source / ".env").write_text("OPENAI_API_KEY=sk-0987654321\n")
    root = store.add_repository(source)
    assert store.tree(root) == expected
    assert store.add_repository(source) == root, "the commit must be reproducible"
    everything = git(Path(store.path), "cat-file", "--batch-all-objects", "--batch")
    assert "sk-" not in everything
    assert git(Path(store.path), "rev-list", "--all").split() == [root]
    assert git(Path(store.path), "fsck", "--full", "--strict") == ""
    assert os.listdir(Path(store.path, "tmp")) == []
    assert (source / ".env").is_file()


def test_the_dotenv_file_of_a_directory_is_not_added(
    store: RepositoryStore, tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    for name in (".env", "agent.py"):
        (tmp_path / "plain" / name).write_text(
            "KEY=sk-1234567890\n" if name == ".env" else "pass\n"
        )
    root = store.from_directory(tmp_path / "plain")
    assert store.read_file(root, "agent.py") == b"pass\n"
    assert store.read_file(root, ".env") is None


def test_a_template_directory_always_gives_the_same_commit(tmp_path: Path) -> None:
    template = tmp_path / "template"
    (template / "__pycache__").mkdir(parents=True)
    (template / "agent.py").write_text("x = 1\n")
    (template / "__pycache__" / "agent.pyc").write_bytes(b"\0")
    stores = [RepositoryStore(tmp_path / name) for name in ("one", "two")]
    first, second = (each.from_directory(template) for each in stores)
    assert first == second
    stores[0].export(first, tmp_path / "exported")
    assert contents(tmp_path / "exported") == {"agent.py": ("-", b"x = 1\n")}
    assert (stores[0].read_file(first, "agent.py"), stores[0].read_file(first, "none")) == (
        b"x = 1\n",
        None,
    )


NOT_USABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no repository": (lambda root: shutil.rmtree(root / ".git"), "run git init"),
    "part of another": (lambda root: (root / ".git").rename(root.parent / ".git"), "not the top"),
    "no commit": (lambda root: git(root, "update-ref", "-d", "HEAD"), "no commit"),
    "untracked": (lambda root: (root / "new file").touch(), r"'new file'.*commit or stash"),
    "changed": (lambda root: (root / "task_agent.py").write_text("x"), r"'task_agent.py'"),
    "staged": (lambda root: git(root, "rm", "-q", "--cached", "link.d/keep"), "link.d"),
    "bare": (lambda root: git(root, "config", "core.bare", "true"), "bare"),
    "gone": (shutil.rmtree, "not a directory"),
}


@pytest.mark.parametrize(("spoil", "message"), NOT_USABLE.values(), ids=NOT_USABLE.keys())
def test_a_directory_that_is_not_a_clean_repository_raises_a_one_line_error(
    spoil: Callable[[Path], object], message: str, source: Path
) -> None:
    spoil(source)
    with pytest.raises(RepositoryError, match=message) as caught:
        inspect_repository(source)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def booby_trap(where: Path, marker: Path) -> None:
    """Configure a repository so that git runs a program at every opportunity."""
    trap = marker.parent / "trap"
    trap.write_text(f"#!/bin/sh\ntouch '{marker}'\ncat\n")
    trap.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "filter.evil.clean",
        "filter.evil.smudge",
        "diff.external",
        "diff.evil.textconv",
    ):
        git(where, "config", key, str(trap))
    (where / ".git" / "hooks").mkdir(exist_ok=True)
    for hook in (
        "post-checkout",
        "pre-commit",
        "post-index-change",
        "reference-transaction",
        "post-commit",
    ):
        shutil.copy(trap, where / ".git" / "hooks" / hook)
    (where / ".git" / "info").mkdir(exist_ok=True)
    (where / ".git" / "info" / "attributes").write_text("* filter=evil diff=evil\n")


def test_programs_that_a_repository_configures_are_not_run(
    store: RepositoryStore, source: Path, tmp_path: Path
) -> None:
    booby_trap(source, tmp_path / "marker")
    os.utime(source / "task_agent.py")
    root = store.add_repository(source)
    store.checkout(root, tmp_path / "clone")
    booby_trap(tmp_path / "clone", tmp_path / "marker")
    (tmp_path / "clone" / "task_agent.py").write_text("changed\n")
    snapshot = store.snapshot(root, tmp_path / "clone", 1)
    store.export(store.apply_patch(root, snapshot.patch, 2).commit, tmp_path / "exported")
    assert not (tmp_path / "marker").exists()


def test_a_clone_is_complete_and_independent_and_names_no_path_of_the_host(
    store: RepositoryStore, source: Path, root: str, clone: Path, tmp_path: Path
) -> None:
    assert contents(clone) == contents(source)
    (clone / "__pycache__").mkdir()
    (clone / "__pycache__" / "x.pyc").touch()
    assert git(clone, "rev-parse", "HEAD", "main") == f"{root}\n{root}\n"
    assert (
        git(clone, "status", "--porcelain")
        == git(clone, "remote")
        == git(clone, "diff", root)
        == ""
    )
    assert not (clone / ".git" / "hooks").exists()
    shared = {path.stat().st_ino for path in Path(store.path).rglob("*") if path.is_file()}
    for path in (clone / ".git").rglob("*"):
        assert not path.is_file() or (
            path.stat().st_ino not in shared and str(tmp_path).encode() not in path.read_bytes()
        )
    (clone / "new.py").write_text("new\n")
    git(clone, "add", "--all")
    git(clone, "commit", "-qm", "the agent's own")
    assert "+new" in git(clone, "diff", root)
    with pytest.raises(RepositoryError, match="not empty"):
        store.checkout(root, clone)
    with pytest.raises(RepositoryError, match="pack-objects"):
        store.checkout("0" * 40, tmp_path / "none")
    with pytest.raises(SpecError):
        store.checkout("--upload-pack=touch x", tmp_path / "none2")


def test_a_snapshot_contains_every_kind_of_change_and_ignores_the_git_directory_of_the_clone(
    store: RepositoryStore, root: str, clone: Path, tmp_path: Path
) -> None:
    (clone / "task_agent.py").unlink()
    for name in ("dos.txt", "new.win"):
        (clone / name).write_bytes(b"one\r\nchanged $Id$\r\nmixed\n")
    (clone / "all.bin").write_bytes(bytes(range(256)) * 20)
    (clone / "é 'new\nline'\t").write_bytes(b"no newline at the end")
    (clone / "empty").touch()
    (clone / "link.d" / "keep").chmod(0o755)
    (clone / "link.d" / "up").symlink_to("../dos.txt")
    expected = contents(clone)
    (clone / "outputs").mkdir()
    (clone / "outputs" / "big").write_text("ignored")
    (clone / "x.log").write_text("ignored")
    (clone / "__pycache__").mkdir()
    (clone / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"\0")
    shutil.rmtree(clone / ".git")
    (clone / ".git").write_text("gitdir: /etc\n")
    snapshot = store.snapshot(root, clone, 1)
    assert snapshot.dropped == ()
    store.checkout(snapshot.commit, tmp_path / "next")
    assert contents(tmp_path / "next") == expected
    assert b"GIT binary patch" in snapshot.patch
    assert git(tmp_path / "next", "status", "--porcelain") == ""
    again = store.apply_patch(root, snapshot.patch, 2)
    assert (store.tree(again.commit), again.patch) == (store.tree(snapshot.commit), snapshot.patch)
    assert store.commit_of(1) == snapshot.commit
    assert store.commit_of("none") is None


def test_a_snapshot_leaves_out_forbidden_changes_and_names_them(
    store: RepositoryStore, root: str, clone: Path
) -> None:
    (clone / "domains" / "maze" / "score.py").write_text("SECRET = 2\n")
    (clone / "domains" / "new.py").touch()
    (clone / "domains" / "here").unlink()
    (clone / "hyperrun.toml").touch()
    (clone / "large").write_bytes(b"x" * 2001)
    (clone / "absolute").symlink_to("/etc/passwd")
    (clone / "escape").symlink_to("../../outside")
    (clone / "sneaky").symlink_to("domains/here/../../../outside")
    (clone / "dotgit").symlink_to(".git/config")
    os.mkfifo(clone / "fifo")
    shutil.rmtree(clone / "link.d")
    (clone / "link.d").symlink_to("/tmp")
    (clone / "nested" / ".git").mkdir(parents=True)
    (clone / "nested" / ".git" / "config").touch()
    (clone / "nested" / "GIT~1").touch()
    (clone / "nested" / "fine").touch()
    (clone / ".gitignore").write_text("fine\n")
    snapshot = store.snapshot(
        root, clone, 1, ChangeRules(protected=("domains/", "hyperrun.toml"), max_file_bytes=2000)
    )
    assert dict(snapshot.dropped) == {
        "domains/maze/score.py": "domains/ is protected",
        "domains/new.py": "domains/ is protected",
        "domains/here": "domains/ is protected",
        "hyperrun.toml": "hyperrun.toml is protected",
        "large": "its 2001 bytes are more than 2000 (max_file_bytes)",
        "absolute": "a symbolic link to an absolute path",
        "escape": "a symbolic link that leads out of the tree",
        "sneaky": "a symbolic link with .. after a name",
        "dotgit": "a symbolic link into git's own files",
        "fifo": "a FIFO cannot be stored",
        "link.d": "a symbolic link to an absolute path",
        "nested/.git": "a path into git's own files",
        "nested/GIT~1": "a path into git's own files",
    }
    changed = git(Path(store.path), "diff", "--name-status", root, snapshot.commit).split()
    assert changed == ["M", ".gitignore", "A", "nested/fine"]


@pytest.mark.parametrize("how", ["tree", "diff"])
def test_a_change_that_is_too_large_as_a_whole_is_refused_and_its_largest_files_are_named(
    store: RepositoryStore, root: str, clone: Path, how: str
) -> None:
    same_size = (clone / "task_agent.py").read_text().replace("task", "TASK")
    (clone / "task_agent.py").write_text(same_size)
    (clone / "left out").write_bytes(bytes(5001))
    (clone / "small").write_bytes(bytes(10))
    (clone / "large").write_bytes(bytes(4000))
    total = len(same_size) + 4010
    rules = ChangeRules(max_file_bytes=5000, max_change_bytes=total)
    kept = store.snapshot(root, clone, "fits", rules)
    assert store.read_file(kept.commit, "large") == bytes(4000)

    def change(rules: ChangeRules) -> None:
        if how == "tree":
            store.snapshot(root, clone, "refused", rules)
        else:
            store.apply_patch(root, kept.patch, "refused", rules)

    why = rf"{total} bytes in all, more than {total - 1} \(max_change_bytes\); the largest are 'large' \(4000 bytes\), "
    with pytest.raises(PatchError, match=why):
        change(attrs.evolve(rules, max_change_bytes=total - 1))
    assert store.commit_of("refused") is None
    change(rules)
    assert store.tree(store.commit_of("refused") or "") == store.tree(kept.commit)


def test_the_largest_files_of_a_change_are_named_also_if_the_first_ones_are_too_large(
    store: RepositoryStore, root: str, clone: Path
) -> None:
    for name, size in (("a", 3000), ("b", 2000), ("z", 4000)):
        (clone / name).write_bytes(bytes(size))
    why = r"^the new and changed files have 9000 bytes in all, .*largest are 'z' \(4000 bytes\), 'a' \(3000 bytes\)"
    with pytest.raises(PatchError, match=why):
        store.snapshot(root, clone, "refused", ChangeRules(max_change_bytes=2500))


def test_a_file_in_place_of_a_protected_directory_changes_nothing(
    store: RepositoryStore, root: str, clone: Path
) -> None:
    shutil.rmtree(clone / "domains")
    (clone / "domains").write_text("a file now")
    (clone / "dos.txt").unlink()
    (clone / "dos.txt").mkdir()
    (clone / "dos.txt" / "below").touch()
    snapshot = store.snapshot(root, clone, 1, ChangeRules(protected=("domains/maze", "dos.txt")))
    assert snapshot.commit == root
    assert snapshot.patch == b""
    assert {"domains", "domains/maze/score.py", "dos.txt", "dos.txt/below"} == {
        path for path, _ in snapshot.dropped
    }
    assert store.commit_of(1) == root


REGIONS = """import json
# EVOLVE-BLOCK-START
SIZE = 1
# EVOLVE-BLOCK-END
print(SIZE)
# EVOLVE-BLOCK-START
# EVOLVE-BLOCK-END
"""


@pytest.mark.parametrize(
    ("old", "new", "is_kept"),
    [
        ("SIZE = 1", "SIZE = 2\nMORE = 3", True),
        ("SIZE = 1\n", "", True),
        ("print(SIZE)\n# EVOLVE-BLOCK-START\n", "print(SIZE)\n# EVOLVE-BLOCK-START\nx = 1\n", True),
        ("print(SIZE)", "print(2)", False),
        ("import json", "import json, os", False),
        ("# EVOLVE-BLOCK-START\nSIZE", "SIZE", False),
        ("SIZE = 1", "# EVOLVE-BLOCK-END\nimport os\n# EVOLVE-BLOCK-START", False),
        ("SIZE = 1", "SIZE = 2  # EVOLVE-BLOCK-END", False),
        ("\n", "\r\n", False),
    ],
)
def test_only_the_lines_between_markers_of_a_protected_file_may_change(
    store: RepositoryStore, root: str, clone: Path, old: str, new: str, is_kept: bool
) -> None:
    (clone / "domains/loop.py").write_text(REGIONS)
    start = store.snapshot(root, clone, 1).commit
    rules = ChangeRules(protected=("domains/loop.py#EVOLVE-BLOCK",))
    (clone / "domains/loop.py").write_text(REGIONS.replace(old, new), newline="")
    (clone / "dos.txt").write_text("free")
    wanted = store.snapshot(start, clone, 2).patch
    for snapshot in (
        store.snapshot(start, clone, 3, rules),
        store.apply_patch(start, wanted, 4, rules),
    ):
        found = store.read_file(snapshot.commit, "domains/loop.py")
        assert found == (REGIONS.replace(old, new) if is_kept else REGIONS).encode()
        why = "a line outside of EVOLVE-BLOCK is protected"
        assert snapshot.dropped == (() if is_kept else (("domains/loop.py", why),))
        assert store.read_file(snapshot.commit, "dos.txt") == b"free"


@pytest.mark.parametrize("change", ["removed", "a link", "a directory", "new"])
def test_a_file_with_markers_stays_a_file(
    store: RepositoryStore, root: str, clone: Path, change: str
) -> None:
    path = clone / "domains/loop.py"
    path.write_text(REGIONS)
    start = root if change == "new" else store.snapshot(root, clone, 1).commit
    if change != "new":
        path.unlink()
    if change == "a link":
        path.symlink_to("maze/score.py")
    if change == "a directory":
        path.mkdir()
        (path / "x.py").touch()
    wanted = store.snapshot(start, clone, 2).patch
    rules = ChangeRules(protected=("domains/loop.py#EVOLVE-BLOCK",))
    for snapshot in (
        store.snapshot(start, clone, 3, rules),
        store.apply_patch(start, wanted, 4, rules),
    ):
        assert snapshot.commit == start
        assert "domains/loop.py" in dict(snapshot.dropped)


def test_a_path_that_becomes_a_link_during_the_snapshot_is_not_followed(
    store: RepositoryStore, root: str, clone: Path, tmp_path: Path
) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "score.py").write_text("the host's secret")
    (clone / "leaf").write_text("leaf")
    with WorkTree(clone) as tree:
        shutil.rmtree(clone / "domains" / "maze")
        (clone / "domains" / "maze").symlink_to(tmp_path / "host")
        (clone / "leaf").unlink()
        (clone / "leaf").symlink_to(tmp_path / "host" / "score.py")
        changes, dropped = compare(tree, store.entries(root), ChangeRules(), lambda _: set())
    assert not any(b"secret" in (change.data or b"") for change in changes)
    assert {b"domains/maze/score.py", b"leaf"} <= dropped.keys()


def as_reader_without_privilege(*args: str) -> str:
    """Run Python code without the rights of root to bypass file modes; return its output."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    ran = subprocess.run(
        [*drop, sys.executable, "-c", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_unreadable_files_keep_their_old_state_and_are_named(
    store: RepositoryStore, root: str, clone: Path
) -> None:
    take = """
import sys
from hyperruntime.git.store import RepositoryStore
store, root, clone = sys.argv[1:]
snapshot = RepositoryStore(store).snapshot(root, clone, 1)
print(snapshot.commit, *[path for path, _ in snapshot.dropped])
"""
    (clone / "task_agent.py").chmod(0)
    (clone / "domains").chmod(0)
    try:
        commit, *dropped = as_reader_without_privilege(
            take, str(store.path), root, str(clone)
        ).split()
    finally:
        (clone / "domains").chmod(0o755)
    assert commit == root
    assert {"task_agent.py", "domains"} <= set(dropped)


def test_diffs_written_by_git_and_by_diff_are_applied(
    store: RepositoryStore, root: str, clone: Path
) -> None:
    (clone / "task_agent.py").write_text("print('task')\n" * 29 + "print('done')\n")
    (clone / "new.py").write_text("new = 1\n")
    (clone / "outside").symlink_to("/etc/passwd")
    (clone / "domains" / "maze" / "score.py").write_text("SECRET = 3\n")
    tracked = git(clone, "diff", root)
    new = "".join(
        subprocess.run(
            ["git", "diff", "--no-index", "/dev/null", name],
            cwd=clone,
            env=CALM,
            capture_output=True,
            check=False,
        ).stdout.decode()
        for name in ("new.py", "outside")
    )
    snapshot = store.apply_patch(
        root, (tracked + new).encode(), 1, ChangeRules(protected=("domains/",))
    )
    assert dict(snapshot.dropped) == {
        "domains/maze/score.py": "domains/ is protected",
        "outside": "a symbolic link to an absolute path",
    }
    assert store.read_file(snapshot.commit, "new.py") == b"new = 1\n"
    plain = b"--- a/dos.txt\t2024-01-01 00:00:00\n+++ b/dos.txt\t2024-01-02 00:00:00\n"
    plain += b"@@ -1,2 +1,2 @@\n one\r\n-two\r\n+2\r\n"
    second = store.apply_patch(snapshot.commit, plain, 2)
    assert store.read_file(second.commit, "dos.txt") == b"one\r\n2\r\n"
    assert store.apply_patch(second.commit, b" \n", 3).commit == second.commit


def addition(name: str, mode: str = "100644", text: str = "x") -> bytes:
    """Return a diff that adds a file with one line."""
    header = f"diff --git a/{name} b/{name}\nnew file mode {mode}\n--- /dev/null\n+++ b/{name}\n"
    return f"{header}@@ -0,0 +1 @@\n+{text}\n\\ No newline at end of file\n".encode()


REFUSED = {
    "up": b"--- a/../x\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n",
    "absolute": b"--- /dev/null\n+++ /etc/x\n@@ -0,0 +1 @@\n+x\n",
    "hidden absolute": addition("/etc/x"),
    "quoted": b'diff --git "a/\\056\\056/x" "b/\\056\\056/x"\nnew file mode 100644\n',
    "git's files": addition(".git/hooks/x", "100755"),
    "git's files, spelled otherwise": addition("d/.GIT./config"),
    "rename out": b"diff --git a/dos.txt b/x\nsimilarity index 100%\nrename from dos.txt\nrename to ../x\n",
    "copy in": b"diff --git a/x b/x\nsimilarity index 100%\ncopy from /etc/passwd\ncopy to x\n",
    "through a link": addition("domains/here/x"),
    "through a new link": addition("l", "120000", "/tmp") + addition("l/x"),
}


@pytest.mark.parametrize("patch", REFUSED.values(), ids=REFUSED.keys())
def test_a_diff_that_tries_to_leave_the_repository_is_rejected_completely(
    patch: bytes, store: RepositoryStore, root: str
) -> None:
    with pytest.raises(PatchError) as caught:
        store.apply_patch(root, addition("fine") + patch, 1)
    assert caught.value.refused
    assert store.commit_of(1) is None


def test_a_name_that_git_parses_differently_does_not_bypass_protection(
    store: RepositoryStore, root: str
) -> None:
    # git drops the time although there is no tab before it
    dated = b"dos.txt 2024-01-01 00:00:00.000000000 +0000"
    patch = b"--- a/%s\n+++ b/%s\n@@ -1,2 +1 @@\n one\r\n-two\r\n" % (dated, dated)
    assert store.read_file(store.apply_patch(root, patch, 1).commit, "dos.txt") == b"one\r\n"
    kept = store.apply_patch(root, patch, 2, ChangeRules(protected=("dos.txt",)))
    assert (kept.commit, kept.dropped) == (root, (("dos.txt", "dos.txt is protected"),))


def test_a_diff_that_does_not_apply_names_the_place(store: RepositoryStore, root: str) -> None:
    with pytest.raises(PatchError, match=r"patch failed: dos.txt:1"):
        store.apply_patch(root, b"--- a/dos.txt\n+++ b/dos.txt\n@@ -1 +1 @@\n-three\r\n+3\r\n", 1)
    with pytest.raises(PatchError, match="corrupt patch"):
        store.apply_patch(root, b"--- a/dos.txt\n+++ b/dos.txt\n@@ -1 +1 @@\nnonsense\n", 1)
    with pytest.raises(SpecError):
        store.apply_patch(root, b"", "../../heads/x")


def test_the_thousandth_generation_costs_as_much_as_the_first(
    store: RepositoryStore, root: str, clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []
    for generation in range(1000):
        lines += [
            f"commit refs/hyperruntime/gen/{generation}",
            f"mark :{generation + 1}",
            "committer a <a@b> 0 +0000",
        ]
        lines += ["data 0", f"from {root if generation == 0 else f':{generation}'}"]
        lines += ["M 100644 inline state", f"data {len(str(generation))}", str(generation)]
    stream = "\n".join([*lines, ""]).encode()
    subprocess.run(
        ["git", "fast-import", "--quiet"], cwd=store.path, env=CALM, input=stream, check=True
    )
    calls: list[Sequence[str]] = []

    def counted(args: Sequence[str], **options: Any) -> ProcessResult:
        calls.append(args)
        return run_kept(args, **options)

    monkeypatch.setattr("hyperruntime.git.command.run_kept", counted)
    counts = []
    for generation in (0, 999):
        commit, target = store.commit_of(generation), tmp_path / f"gen{generation}"
        assert commit is not None
        calls.clear()
        store.checkout(commit, target)
        (target / "new").write_text("new")
        store.snapshot(commit, target, f"next-{generation}")
        counts.append(
            (len(calls), int(git(target, "rev-list", "--objects", "--all", "--count").split()[0]))
        )
        assert (target / "state").read_text() == str(generation)
    assert counts[0] == counts[1]
    assert counts[0][0] <= 12


names = st.sampled_from(
    [
        "a.py",
        "b.bin",
        "dir/c",
        "dir/deep/d",
        "-n",
        "sp ace",
        "qu\"o'te",
        "new\nline",
        "é",
        "a.py/x",
        "dir",
    ]
)
bodies = st.one_of(
    st.binary(max_size=300),
    st.lists(
        st.sampled_from([b"x", b"y", b"--- a/x", b"+++ b/x", b"@@ -1 +1 @@"]), max_size=12
    ).map(b"\r\n".join),
    st.lists(st.sampled_from([b"1", b"2", b"3", b""]), max_size=30).map(b"\n".join),
)
edits = st.one_of(
    st.tuples(st.just("write"), names, bodies),
    st.tuples(st.just("remove"), names, st.just(b"")),
    st.tuples(st.just("mode"), names, st.just(b"")),
    st.tuples(st.just("link"), names, st.sampled_from([b"a.py", b"dir/c", b"nowhere"])),
)


def edit(root: Path, kind: str, name: str, body: bytes) -> None:
    path = root / name
    if kind == "mode" and path.is_file() and not path.is_symlink():
        path.chmod(path.stat().st_mode ^ 0o111)
    if kind == "mode":
        return
    for part in [*reversed(path.relative_to(root).parents[:-1]), path.relative_to(root)]:
        there = root / part
        if there.is_symlink() or there.is_file():
            there.unlink()
    if path.is_dir():
        shutil.rmtree(path)
    if kind != "remove":
        path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "write":
        path.write_bytes(body)
    elif kind == "link":
        path.symlink_to(os.fsdecode(body))


@settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(edits, min_size=1, max_size=8), min_size=1, max_size=3))
def test_commits_diffs_and_files_agree_for_any_lineage_of_edits(
    lineage: list[list[tuple[str, str, bytes]]],
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        (work := Path(scratch, "work")).mkdir()
        (work / "a.py").write_bytes(b"1\n2\n3\n")
        store = RepositoryStore(Path(scratch, "store"))
        root = parent = store.from_directory(work)
        patches = []
        for generation, step in enumerate(lineage):
            for kind, name, body in step:
                edit(work, kind, name, body)
            snapshot = store.snapshot(parent, work, generation)
            assert snapshot.dropped == ()
            applied = store.apply_patch(parent, snapshot.patch, f"{generation}-by-diff")
            assert (store.tree(applied.commit), applied.dropped) == (
                store.tree(snapshot.commit),
                (),
            )
            parent = snapshot.commit
            patches.append(snapshot.patch)
        assert store.replay(root, patches) == store.tree(parent)
        store.checkout(parent, Path(scratch, "clone"))
        assert contents(Path(scratch, "clone")) == contents(work)
        assert git(Path(scratch, "clone"), "status", "--porcelain") == ""


def test_threads_can_use_one_store_at_the_same_time(
    store: RepositoryStore, root: str, tmp_path: Path
) -> None:
    def one(generation: int) -> bool:
        clone = tmp_path / f"clone{generation}"
        store.checkout(root, clone)
        (clone / "task_agent.py").write_text(f"print({generation})\n")
        kept = store.snapshot(root, clone, generation)
        again = store.apply_patch(root, kept.patch, f"{generation}-again")
        ours = store.read_file(again.commit, "task_agent.py") == f"print({generation})\n".encode()
        return ours and store.commit_of(generation) == kept.commit

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(16)))
    assert os.listdir(Path(store.path, "tmp")) == []


def at_work(path: str) -> list[psutil.Process]:
    """Return the git processes that work on a store."""
    listed = psutil.process_iter(["environ"])
    return [
        found
        for found in listed
        if (found.info["environ"] or {}).get("GIT_DIR", "").startswith(path)
    ]


def test_a_process_killed_at_any_moment_leaves_a_usable_store(
    store: RepositoryStore, root: str, clone: Path
) -> None:
    for delay in (0.01, 0.04, 0.08):
        if (child := os.fork()) == 0:
            os.setpgid(0, 0)
            for turn in range(1000):
                (clone / "task_agent.py").write_text(f"print({delay}, {turn})\n")
                store.snapshot(root, clone, "contended")
            os._exit(0)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        # wait for a git process that the child started
        assert wait_until(lambda: not at_work(str(store.path)), 60)
    Path(store.path, "refs/hyperruntime/gen").mkdir(exist_ok=True)
    Path(store.path, "refs/hyperruntime/gen/contended.lock").touch()
    store.recover()
    assert os.listdir(Path(store.path, "tmp")) == []
    (clone / "task_agent.py").write_text("print('last')\n")
    kept = store.snapshot(root, clone, "contended")
    assert store.commit_of("contended") == kept.commit
    assert git(Path(store.path), "fsck", "--connectivity-only") is not None


def test_a_diff_with_different_outer_context_applies_with_fuzz(tmp_path: Path) -> None:
    lines = [f"line {number}\n" for number in range(9)]
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_text("".join(lines))
    store = RepositoryStore(tmp_path / "store")
    root = store.from_directory(source)
    patch = b"--- a/f\n+++ b/f\n@@ -2,7 +2,7 @@\n other\n other\n line 3\n-line 4\n+new\n line 5\n other\n other\n"
    with pytest.raises(PatchError):
        store.apply_patch(root, patch, 1)
    changed = store.read_file(store.apply_patch(root, patch, 1, fuzz=True).commit, "f")
    assert changed == "".join([*lines[:4], "new\n", *lines[5:]]).encode()
    with pytest.raises(PatchError):
        store.apply_patch(root, patch.replace(b" line 5", b" other"), 2, fuzz=True)
