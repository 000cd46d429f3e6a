"""The program that merges layers, on layers of every kind that are made by hand."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from hyperruntime.layers.snapshots import merging
from hyperruntime.layers.snapshots.freezing import program
from hyperruntime.layers.snapshots.merging import changes, merge, without_large

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make whiteouts here")
OPAQUE = "user.overlay.opaque"


def write(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def whiteout(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, 0)


def is_whiteout(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def is_opaque(path: Path) -> bool:
    return OPAQUE in os.listxattr(path)


@pytest.fixture
def stack(tmp_path: Path) -> list[Path]:
    """Return three layers and a tree, the highest first."""
    top, middle, low, tree = found = [tmp_path / name for name in ("top", "middle", "low", "tree")]
    for name in ("a/kept", "a/gone", "b/old", "c/old", "d", "e/in", "f/old", "g/old", "h/old"):
        write(tree / name, f"tree {name}")
    whiteout(low / "a/gone")
    write(low / "a/own", "low")
    write(low / "b", "a file over a directory")
    write(low / "f/low", "below an opaque one")
    write(low / "g/low")
    whiteout(low / "h")
    (middle / "b").mkdir(parents=True)  # a directory over a file
    write(middle / "b/new", "new")
    write(middle / "d/in", "a directory over a file of the tree")
    write(middle / "f/middle")
    os.setxattr(middle / "f", OPAQUE, b"y")
    os.setxattr(write(middle / "g/old"), "user.overlay.whiteout", b"")
    write(middle / "h/new")  # a directory over a whiteout
    write(middle / "again", "1")
    whiteout(top / "again")
    whiteout(top / "f/middle2")
    whiteout(top / "g/away")
    write(top / "f/top")
    whiteout(top / "e")
    return found


def test_a_merged_layer_shows_what_the_layers_show(stack: list[Path], tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    merged.mkdir()
    merge(list(map(str, stack[:-1])), [str(stack[-1])], str(merged), {})
    before = [*map(str, stack)]
    assert list(changes(before, [str(merged), str(stack[-1])])) == []
    for name in ("a/gone", "e", "g/old"):
        assert is_whiteout(merged / name)
    for name in ("again", "b/old", "f/old", "g/away"):  # the kernel would list them
        assert not os.path.lexists(merged / name)
    assert sorted(os.listdir(merged / "f")) == ["middle", "top"]
    for name, opaque in (("a", False), ("b", True), ("f", True), ("g", False), ("h", True)):
        assert is_opaque(merged / name) is opaque
    assert sorted(changes([str(stack[-1])], before)) == [
        ("added", "/a/own"),
        ("added", "/b/new"),
        ("added", "/d/in"),
        ("added", "/f/middle"),
        ("added", "/f/top"),
        ("added", "/g/low"),
        ("added", "/h/new"),
        ("changed", "/d"),
        ("removed", "/a/gone"),
        ("removed", "/b/old"),
        ("removed", "/e"),
        ("removed", "/e/in"),
        ("removed", "/f/old"),
        ("removed", "/g/old"),
        ("removed", "/h/old"),
    ]


def test_marks_of_fuse_overlayfs_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed files once came back in a merged layer."""
    monkeypatch.setattr(merging, "by_fuse", True)
    tree, low, top, merged = (str(tmp_path / name) for name in ("tree", "low", "top", "merged"))
    for name in ("tree/a", "tree/d/old", "low/b", "low/d/low", "low/e/in", "top/.wh.a"):
        write(tmp_path / name)
    for name in ("top/.wh.b", "top/d/.wh..wh..opq", "top/d/new", "top/.wh.e", "low/f/.wh..wh..opq"):
        write(tmp_path / name)
    os.mkdir(merged)
    merge([top, low], [tree], merged, {})
    assert sorted(os.listdir(merged)) == [".wh.a", "d", "f"]
    assert sorted(os.listdir(f"{merged}/d")) == [".wh..wh..opq", "new"]
    assert os.listdir(f"{merged}/f") == []
    removed = [("removed", "/a"), ("added", "/d/new"), ("removed", "/d/old"), ("added", "/f")]
    assert list(changes([tree], [merged, tree])) == removed
    assert list(changes([top, low, tree], [merged, tree])) == []


def test_everything_about_a_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "top"
    own = write(top / "own", "x" * 100)
    os.chown(own, 1234, 1235)
    os.chmod(own, 0o6750)
    for name in ("user.mine", "user.overlay.overlay.opaque", "user.overlay.origin"):
        os.setxattr(own, name, b"value")
    os.utime(own, ns=(1, 2))
    os.link(own, top / "hard")
    (top / "closed").mkdir(mode=0o700)
    os.link(own, top / "closed/hard")
    os.chmod(top / "closed", 0o1000)
    os.utime(top / "closed", ns=(3, 4))
    (top / "soft").symlink_to("/nowhere")
    os.utime(top / "soft", ns=(5, 6), follow_symlinks=False)
    os.mkfifo(top / "fifo")
    monkeypatch.chdir(top)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    write(top / os.fsdecode(b"\xff\n"), "odd")
    with open(top / "hole", "wb") as file:
        file.seek(50_000_000)
        file.write(b"end")
    deep = top.joinpath(*["deep"] * 300)
    write(deep / "f")
    merge_into(top, tmp_path / "merged")
    merged = tmp_path / "merged"
    for path in (top, *top.rglob("*")):
        was = path.lstat()
        now = (merged / path.relative_to(top)).lstat()
        for fact in ("st_mode", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_nlink"):
            assert getattr(was, fact) == getattr(now, fact), (path, fact)
    assert os.listxattr(merged / "own") == ["user.mine", "user.overlay.overlay.opaque"]
    assert (merged / "own").samefile(merged / "closed/hard")
    assert (merged / "hole").stat().st_blocks < 1000
    assert (merged / "hole").read_bytes()[-4:] == b"\0end"
    assert (merged / "soft").readlink() == Path("/nowhere")


def merge_into(layer: Path, target: Path) -> None:
    done = subprocess.run(program("merge", str(target), str(layer), "--"), stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, b"1\n")


def test_a_low_layer_that_is_larger_than_all_above_stays_out(tmp_path: Path) -> None:
    layers = [tmp_path / str(number) for number in range(5)]
    for layer, size in zip(layers, (1, 1, 1, 90_000, 9_000_000), strict=True):
        write(layer / "f", "x" * size)
    stack = list(map(str, layers))
    assert without_large(stack) == stack[:3]
    assert without_large(stack[3:]) == stack[3:]


def test_a_full_disk_is_an_error_with_the_path_and_changes_no_layer(tmp_path: Path) -> None:
    write(tmp_path / "top/f", "x" * 300_000)
    (tmp_path / "full").mkdir()
    target = f"{tmp_path}/full/merged"
    mount = f'mount -t tmpfs -o size=100k none {tmp_path}/full && exec "$@"'
    words = program("merge", target, f"{tmp_path}/top", "--")
    args = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *words]
    done = subprocess.run(args, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("No space left on device\n")
    assert (tmp_path / "top/f").stat().st_size == 300_000


def test_layers_without_any_below_become_a_tree_without_marks(
    stack: list[Path], tmp_path: Path
) -> None:
    (target := tmp_path / "target").mkdir()
    layers = list(map(str, stack))
    merge(layers, [], str(target), {})
    assert list(changes(layers, [str(target)])) == []
    found = list(target.rglob("*"))
    assert len(found) > 10
    assert not any(is_whiteout(one) or is_opaque(one) for one in found)
