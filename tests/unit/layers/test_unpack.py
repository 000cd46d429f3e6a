"""Layers become one tree, exactly; a hostile layer writes nothing outside it, and is refused."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperruntime.errors import ImageError, TransferError
from hyperruntime.layers import owners, unpack
from hyperruntime.layers.unpack import unpack_layers
from tests.doubles.layers import MTIME, Entry, entry, layer

Members = Iterable[Entry | str]


@contextmanager
def opened(data: bytes) -> Iterator[BinaryIO]:
    yield io.BytesIO(data)


def made(root: Path, *layers: Members) -> Path:
    """Return a tree of layers, without the mount points."""
    unpack_layers(root, [partial(opened, layer(members)) for members in layers])
    for name in ("var/tmp", "dev", "etc", "proc", "run", "sys", "tmp", "var"):
        path = root / name
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
    return root


def names(root: Path) -> set[str]:
    """Return the entries of a tree; directories end with a slash."""
    return {
        str(path.relative_to(root)) + "/" * (path.is_dir() and not path.is_symlink())
        for path in root.rglob("*")
    }


@pytest.mark.parametrize(
    ("layers", "left"),
    [
        ((["a/", "a/1", "a/2"], ["a/.wh.1"]), {"a/", "a/2"}),
        ((["a/", "a/1"], [".wh.a"]), set()),
        ((["a/", "a/1"], ["a/", "a/.wh..wh..opq", "a/2"]), {"a/", "a/2"}),
        ((["a/", "a/1"], ["a/", "a/2", "a/.wh..wh..opq"]), {"a/", "a/2"}),
        ((["a/", "a/1"], ["a/1", "a/.wh.1"]), {"a/", "a/1"}),
        ((["a/", "a/1"], [".wh.a", "a/", "a/2"]), {"a/", "a/2"}),
        ((["a/", "a/1", "a/.wh.1"],), {"a/", "a/1"}),
        ((["a/"], ["a/.wh.none", "b/.wh..wh..opq", ".wh.x"]), {"a/"}),
        ((["a/", "a/1"], ["a"]), {"a"}),
        ((["a"], ["a/", "a/1"]), {"a/", "a/1"}),
        ((["a"], ["a/1"]), {"a/", "a/1"}),
        ((["b/", entry("a", "symlink", "b")], ["a/", "a/1"]), {"a/", "a/1", "b/"}),
        ((["a/", "a/1"], [entry("a", "symlink", "b")]), {"a"}),
        ((["a", ".wh..wh.plnk", "b/.wh..wh.orph"],), {"a"}),
        (([entry("n", "device"), entry("p", "fifo"), "./", "./a"],), {"a"}),
        ((["/absolute", "//b//c"],), {"absolute", "b/", "b/c"}),
    ],
)
def test_layers_become_one_tree(
    tmp_path: Path, layers: tuple[Members, ...], left: set[str]
) -> None:
    assert names(made(tmp_path / "root", *layers)) == left


def test_a_whiteout_does_not_go_through_a_link_that_a_layer_replaces(tmp_path: Path) -> None:
    lower: Members = ["usr/", "usr/kept", entry("data", "symlink", "usr")]
    root = made(tmp_path / "root", lower, ["data/", "data/.wh..wh..opq", "data/.wh.kept"])
    assert names(root) == {"usr/", "usr/kept", "data/"}


def test_modes_times_and_links_are_kept_and_without_other_ids_no_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "has_all_ids", lambda: False)
    foreign = entry("foreign")
    foreign.uid = 12345
    root = made(
        tmp_path / "root",
        [
            entry("d", "directory", mode=0o1705),
            entry("d/program", text="text", mode=0o4511),
            entry("closed", "directory", mode=0),
            entry("closed/secret", mode=0),
            entry("link", "symlink", "/any/../where"),
            foreign,
        ],
        [entry("d/again", "hardlink", "d/program"), entry("s", "hardlink", "link")],
    )
    modes = {name: stat.S_IMODE((root / name).stat().st_mode) for name in ("d", "closed")}
    assert modes == {"d": 0o1705, "closed": 0o700}
    program = (root / "d/program").stat()
    assert (stat.S_IMODE(program.st_mode), program.st_nlink) == (0o4711, 2)
    assert stat.S_IMODE((root / "closed/secret").stat().st_mode) == 0o600
    assert (os.readlink(root / "link"), os.readlink(root / "s")) == ("/any/../where",) * 2
    assert (root / "foreign").stat().st_uid == os.getuid()
    times = {(root / name).lstat().st_mtime for name in ("d", "d/program", "closed", "link")}
    assert times == {MTIME}
    assert stat.S_IMODE(root.stat().st_mode) == 0o755  # no layer names it, and all users need it


def test_the_last_layer_that_names_a_file_gives_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that a layer replaces or hides leave their owners to no other file."""
    given: dict[str, tuple[int, int]] = {}

    def give(root: Path, noted: Mapping[int, tuple[int, int]]) -> None:
        inodes = {path.lstat().st_ino: str(path.relative_to(root)) for path in root.rglob("*")}
        given.update({inodes[inode]: owner for inode, owner in noted.items() if inode in inodes})

    monkeypatch.setattr(unpack, "give_owners", give)
    of_five = (
        ("d", "directory"),
        ("d/a", "file"),
        ("link", "symlink"),
        ("e", "directory"),
        ("gone", "file"),
    )
    lower = []
    for name, kind in of_five:
        member = entry(name, kind, "x" if kind == "symlink" else "")
        member.uid = 5
        lower.append(member)
    upper = entry("d/a")
    upper.gid = 7
    again = entry("e", "directory")
    root = made(
        tmp_path / "root", lower, [upper, again, ".wh.gone", *(f"new-{n}" for n in range(20))]
    )
    assert {"d", "d/a", "link", "e", "new-1"} <= names(root) | {"d", "e"}
    assert given == {"d": (5, 0), "d/a": (0, 7), "link": (5, 0)}


def test_a_file_of_a_later_layer_does_not_change_the_other_names_of_the_old_one(
    tmp_path: Path,
) -> None:
    lower = [entry("a", text="old"), entry("b", "hardlink", "a")]
    root = made(tmp_path / "root", lower, [entry("a", text="new")])
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("new", "old")


def test_attributes_of_users_are_kept_and_others_are_not(tmp_path: Path) -> None:
    member = entry("a")
    member.pax_headers = {
        "SCHILY.xattr.user.mine": "value",
        "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.security.capability": "x",
    }
    root = made(tmp_path / "root", [member])
    try:
        os.setxattr(tmp_path, "user.hyperruntime", b"")
    except OSError:
        pytest.skip("this file system takes no extended attributes")
    assert os.listxattr(root / "a") == ["user.mine"]
    assert os.getxattr(root / "a", "user.mine") == b"value"


def test_the_mount_points_are_made_inside_of_the_image(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    data = layer([entry("var", "symlink", str(outside)), entry("etc", "symlink", "x"), "run"])
    unpack_layers(root, [partial(opened, data)])
    assert list(outside.iterdir()) == []
    assert (root / f"{outside}/tmp".lstrip("/")).is_dir()
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert (root / "run").is_file()


@pytest.mark.parametrize(
    ("members", "says"),
    [
        (["../x"], r"leads out of the image"),
        (["a/../../x"], r"leads out of the image"),
        ([entry("a", "hardlink", "../../etc/passwd")], "leads out of the image"),
        ([entry("a", "hardlink", "/etc/passwd")], "hard link to no file of the image"),
        (["d/", entry("a", "hardlink", "d")], "hard link to no file of the image"),
        ([entry("a", "hardlink", ".")], "hard link to no file of the image"),
        ([entry(".", "symlink", "/etc")], "the root must be a directory"),
        ([entry("loop", "symlink", "loop"), "loop/x"], "too many links"),
        (["/".join(["d" * 200] * 30)], "no file can have this name"),
        ([entry("big", "sparse")], "a sparse file cannot be unpacked"),
    ],
)
def test_a_hostile_layer_is_refused_with_its_member(
    tmp_path: Path, members: Members, says: str
) -> None:
    with pytest.raises(ImageError, match=says):
        made(tmp_path / "root", members)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "a/.wh..", "a/.wh..."])
def test_a_whiteout_hides_only_a_file_of_its_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageError, match="it hides no file by its name"):
        made(tmp_path / "root", ["a/", "a/b", "c"], [name])
    assert {"a/", "a/b", "c"} <= names(tmp_path / "root")


@pytest.mark.parametrize("target", ["/outside", "../outside", "../../../outside", "/"])
def test_a_member_that_goes_through_a_link_stays_in_the_image(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").mkdir()
    link = entry("x", "symlink", target)
    root = made(tmp_path / "root", [link, "x/first"], ["x/second", "x/sub/.wh.third"])
    assert list((tmp_path / "outside").iterdir()) == []
    place = "" if target == "/" else "outside/"
    assert {f"{place}first", f"{place}second"} <= names(root)


def test_limits_on_entries_names_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MOST_ENTRIES", 10)
    with pytest.raises(ImageError, match="more than 10 files"):
        made(tmp_path / "many", (f"f{number}" for number in range(11)))
    with pytest.raises(ImageError, match="more than 10 files"):
        made(tmp_path / "deep", ["/".join("abcdefghijkl")])
    with pytest.raises(ImageError, match="more than 10 files"):
        made(tmp_path / "two", *[[f"{kind}{number}" for number in range(6)] for kind in "ab"])
    monkeypatch.setattr(unpack, "MOST_ENTRIES", 1000)
    monkeypatch.setattr(unpack, "MOST_NAME_BYTES", 100)
    with pytest.raises(ImageError, match="names of its directories"):
        made(tmp_path / "names", (f"{'x' * 30}{number}/" for number in range(4)))
    space = os.statvfs_result((4096, 4096, 9, 9, 2, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: space)
    with pytest.raises(ImageError, match="more than the 0 MiB that are free"):
        made(tmp_path / "large", [entry("x", text="x" * 9000)])


def test_a_damaged_layer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TransferError):
        unpack_layers(tmp_path / "root", [partial(opened, b"no tar" * 200)])


PATHS = st.lists(
    st.sampled_from(
        ["a", "b", "c", "..", ".", "", ".wh.a", ".wh..wh..opq", ".wh.b", ".wh..", ".wh..."]
    ),
    min_size=1,
    max_size=4,
).map("/".join)
MEMBERS = st.builds(
    entry,
    PATHS,
    st.sampled_from(["file", "directory", "symlink", "hardlink", "device"]),
    st.one_of(PATHS, PATHS.map("/{}".format), st.just("../../..")),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(MEMBERS, max_size=8), min_size=1, max_size=3))
def test_no_layers_write_outside_of_the_tree(layers: list[list[Entry]]) -> None:
    place = Path(tempfile.mkdtemp())
    try:
        for name in ("a", "b", "c", "root/keep"):
            (place / name).mkdir(parents=True)
            (place / name / "a").write_text("the host's own")
        root = place / "root" / "image"
        try:
            unpack_layers(root, [partial(opened, layer(members)) for members in layers])
        except (ImageError, OSError):
            pass
        outside = {one for one in place.rglob("*") if root not in (one, *one.parents)}
        expected = itertools.chain(
            *((place / n, place / n / "a") for n in ("a", "b", "c", "root/keep")), [place / "root"]
        )
        assert outside == set(expected)
        assert {one.read_text() for one in outside if one.is_file()} == {"the host's own"}
        assert all(one.stat().st_nlink == 1 for one in outside if one.is_file())
    finally:
        shutil.rmtree(place)
