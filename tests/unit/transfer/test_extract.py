"""Trees survive a round trip exactly, and a hostile archive cannot write outside its target."""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperruntime.errors import SpecError, TransferError, UnsafeArchiveError
from hyperruntime.storage.tar_reader import CHUNK
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport, extract_tree
from hyperruntime.transfer.tar_writer import read_tree
from tests.trees import snapshot

LIMITS = ExtractLimits(max_bytes=1 << 26, max_members=1000)
ROOMY = settings(suppress_health_check=list(HealthCheck))
ODD_NAMES = [
    b"a b",
    b"new\nline",
    b"quo'te\"s",
    b"\xff\xfe-not-utf8",
    b"-rf",
    b"tab\t",
    b"x" * 255,
    "é".encode(),
    b"*",
]


def pack(source: Path) -> bytes:
    return b"".join(read_tree(source, "top"))


def unpack(
    archive: bytes, target: Path, limits: ExtractLimits = LIMITS, *, rename_root: bool = True
) -> ExtractReport:
    return extract_tree(io.BytesIO(archive), target, limits=limits, rename_root=rename_root)


def member(
    name: bytes, kind: bytes = b"0", data: bytes = b"", link: bytes = b"", **fields: int
) -> bytes:
    """Return a tar member with any fields, also those that no regular tar program would write."""
    info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    info.type, info.linkname, info.size = kind, link.decode("utf-8", "surrogateescape"), len(data)
    info.mode = 0o755 if kind == b"5" else 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return (
        info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)
    )


END = bytes(1024)


@pytest.fixture
def odd_tree(tmp_path: Path) -> Path:
    """Make a tree with names, links, modes and times that are hard to copy."""
    root = tmp_path / 'it\'s a "tree"'
    (root / "empty").mkdir(parents=True)
    (root / "deep" / ("d" * 120) / ("e" * 120)).mkdir(parents=True)
    for at, name in enumerate(ODD_NAMES):
        path = os.path.join(os.fsencode(root), name)
        Path(os.fsdecode(path)).write_bytes(bytes(range(256)) * at)
        os.chmod(path, 0o600 | (at & 0o5))
    (root / "link").symlink_to("a b")
    (root / "deep" / "dangling").symlink_to("../not here")
    (root / ("l" * 200)).symlink_to("empty/" + "m" * 200)
    (root / "empty").chmod(0o511)
    os.utime(root / "deep", (1_000_000_000, 1_000_000_000))
    return root


def test_a_tree_with_odd_names_links_modes_and_times_survives_a_round_trip(
    odd_tree: Path, tmp_path: Path
) -> None:
    report = unpack(pack(odd_tree), tmp_path / "copy")
    assert snapshot(tmp_path / "copy") == snapshot(odd_tree)
    assert report.refused == ()
    assert report.members == len(snapshot(odd_tree))


@pytest.mark.parametrize("tar", [["tar"], ["busybox", "tar"]], ids=["gnu", "busybox"])
def test_archives_can_be_exchanged_with_gnu_tar_and_busybox_tar(
    tar: list[str], odd_tree: Path, tmp_path: Path
) -> None:
    assert shutil.which(tar[0]), f"{tar[0]} is missing; `scripts/setup test` installs it"
    os.link(odd_tree / "a b", odd_tree / "second name")
    command = [*tar, "-cf", "-", "-C", str(odd_tree.parent), "--", odd_tree.name]
    theirs = subprocess.run(command, capture_output=True, check=True)
    report = unpack(theirs.stdout, tmp_path / "copy")
    assert report.refused == ()
    assert snapshot(tmp_path / "copy") == snapshot(odd_tree)
    assert (tmp_path / "copy" / "a b").samefile(tmp_path / "copy" / "second name")
    (tmp_path / "out").mkdir()
    subprocess.run([*tar, "-xpf", "-", "-C", tmp_path / "out"], input=pack(odd_tree), check=True)
    times = tar == ["tar"]  # busybox sets the time of a directory before it writes into it
    assert snapshot(tmp_path / "out" / "top", times=times) == snapshot(odd_tree, times=times)


@pytest.mark.parametrize("form", ["gnu", "posix", "ustar"])
def test_gnu_tar_formats_are_extracted(form: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / ("n" * 90) / ("o" * 90)).mkdir(parents=True)
    command = ["tar", f"--format={form}", "-cf", "-", "-C", str(source), "."]
    made = subprocess.run(command, capture_output=True, check=True)
    assert unpack(made.stdout, tmp_path / "copy").refused == ()
    assert snapshot(tmp_path / "copy") == snapshot(source)


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_sparse_file_is_refused_and_the_others_are_extracted(form: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "holes").open("wb") as file:
        for at in range(0, 60 << 16, 3 << 16):
            file.seek(at)
            file.write(b"data")
        file.truncate(64 << 16)
    (source / "plain").write_text("data")
    command = ["tar", f"--format={form}", "--sort=name", "-Scf", "-", "-C", str(source), "."]
    made = subprocess.run(command, capture_output=True, check=True)
    report = unpack(made.stdout, tmp_path / "copy")
    assert [reason for _, reason in report.refused] == ["a sparse file"]
    assert os.listdir(tmp_path / "copy") == ["plain"]


names = st.sampled_from([*ODD_NAMES, b"a", b"b", b"c", b"d" * 101])
trees = st.recursive(
    st.one_of(
        st.tuples(st.just("file"), st.binary(max_size=2000), st.integers(0, 0o777)),
        st.tuples(st.just("link"), names, st.just(0)),
    ),
    lambda inner: st.tuples(
        st.just("directory"), st.dictionaries(names, inner, max_size=5), st.integers(0, 0o777)
    ),
    max_leaves=20,
)


def build(path: bytes, node: tuple[str, object, int]) -> None:
    kind, content, mode = node
    if isinstance(content, dict):
        os.mkdir(path)
        for name, child in content.items():
            build(os.path.join(path, name), child)
    elif isinstance(content, bytes) and kind == "link":
        os.symlink(content, path)
        return
    elif isinstance(content, bytes):
        Path(os.fsdecode(path)).write_bytes(content)
    os.chmod(path, mode | 0o700)


@ROOMY
@given(st.dictionaries(names, trees, max_size=5))
def test_any_tree_survives_a_round_trip(children: dict[bytes, tuple[str, object, int]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "source")
        build(os.fsencode(source), ("directory", children, 0o755))
        unpack(pack(source), Path(scratch, "copy"))
        assert snapshot(Path(scratch, "copy")) == snapshot(source)


def test_special_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    os.mkfifo(tmp_path / "source" / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "source" / "socket"))
    (tmp_path / "source" / "file").touch()
    unpack(pack(tmp_path / "source"), tmp_path / "copy")
    assert os.listdir(tmp_path / "copy") == ["file"]
    with pytest.raises(TransferError, match=r"fifo.*it is a FIFO"):
        pack(tmp_path / "source" / "fifo")
    with pytest.raises(TransferError, match="No such file"):
        pack(tmp_path / "missing")


@pytest.mark.parametrize("new_size", [100_000, 9_000_000], ids=["shrinks", "grows"])
def test_a_file_that_changes_size_during_the_read_does_not_damage_the_archive(
    tmp_path: Path, new_size: int
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"x" * 5_000_000)
    (tmp_path / "source" / "b").write_bytes(b"behind")

    archive = b""
    for chunk in read_tree(tmp_path / "source", "top"):
        if len(chunk) == CHUNK:
            os.truncate(tmp_path / "source" / "a", new_size)
        archive += chunk
    unpack(archive, tmp_path / "copy")
    read = min(max(new_size, CHUNK), 5_000_000)
    assert (tmp_path / "copy" / "a").read_bytes() == b"x" * read + bytes(5_000_000 - read)
    assert (tmp_path / "copy" / "b").read_bytes() == b"behind"


HOSTILE = {
    "absolute name": member(b"/canary/x", data=b"bad"),
    "name with ..": member(b"top/../canary", data=b"bad"),
    "absolute link": member(b"top/l", b"2", link=b"/etc/passwd"),
    "link that leaves": member(b"top/l", b"2", link=b"../canary"),
    "link that leaves through a name": member(b"top/l", b"2", link=b"d/../../canary"),
    "empty link": member(b"top/l", b"2"),
    "hard link out": member(b"top/h", b"1", link=b"../canary/kept"),
    "absolute hard link": member(b"top/h", b"1", link=b"/etc/passwd"),
    "hard link to nothing": member(b"top/h", b"1", link=b"top/nothing"),
    "hard link to a link": member(b"top/h", b"1", link=b"top/d/up"),
    "hard link through a link": member(b"top/h", b"1", link=b"top/inside/f"),
    "through a link": member(b"top/inside/new", data=b"bad"),
    "character device": member(b"top/c", b"3", devmajor=1, devminor=3),
    "block device": member(b"top/b", b"4", devmajor=8),
    "FIFO": member(b"top/p", b"6"),
    "unknown type": member(b"top/u", b"Z", data=b"bad"),
    "second root": member(b"other", data=b"bad"),
    "over a full directory": member(b"top/d", data=b"bad"),
    "component too long": member(b"top/" + b"n" * 300, data=b"bad"),
    "name too long": member(b"top/" + b"n/" * 3000, data=b"bad"),
}


@pytest.mark.parametrize("bad", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_member_is_refused_by_name_and_the_others_are_extracted(
    bad: bytes, tmp_path: Path
) -> None:
    (tmp_path / "canary").mkdir()
    (tmp_path / "canary" / "kept").write_text("kept")
    before = snapshot(tmp_path / "canary")
    honest = [member(b"top", b"5"), member(b"top/d/f", data=b"f"), member(b"top/f", data=b"f")]
    honest += [member(b"top/d/up", b"2", link=b"../f"), member(b"top/inside", b"2", link=b"d")]
    report = unpack(
        b"".join([*honest, bad, member(b"top/last", data=b"last"), END]), tmp_path / "target"
    )
    assert len(report.refused) == 1, report
    assert snapshot(tmp_path / "canary") == before
    assert sorted(os.listdir(tmp_path)) == ["canary", "target"]
    assert set(snapshot(tmp_path / "target")) == {
        b".",
        b"d",
        b"d/f",
        b"d/up",
        b"f",
        b"inside",
        b"last",
    }


def test_special_mode_bits_and_owners_are_dropped(tmp_path: Path) -> None:
    file = member(b"top/f", mode=0o7755, uid=12345, gid=54321)
    unpack(member(b"top", b"5", mode=0o7777) + file + END, tmp_path / "t")
    for path, mode in ((tmp_path / "t", 0o777), (tmp_path / "t" / "f", 0o755)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert path.stat().st_uid == os.getuid()


def test_a_name_that_is_a_file_then_a_link_then_a_file_is_never_written_through_the_link(
    tmp_path: Path,
) -> None:
    archive = [
        member(b"top", b"5"),
        member(b"top/v", data=b"victim"),
        member(b"top/x", data=b"one"),
        member(b"top/x", b"2", link=b"v"),
        member(b"top/x", data=b"three"),
        member(b"top/h", b"1", link=b"top/v"),
        member(b"top/h", data=b"not the victim"),
        member(b"top/e", b"5"),
        member(b"top/e", b"2", link=b"."),
        member(b"top/e", b"5"),
        member(b"top/e/f", data=b"in e"),
    ]
    assert unpack(b"".join([*archive, END]), tmp_path / "t").refused == ()
    found = {
        name: entry[2]
        for name, entry in snapshot(tmp_path / "t").items()
        if entry[0] == stat.S_IFREG
    }
    assert found == {b"v": b"victim", b"x": b"three", b"h": b"not the victim", b"e/f": b"in e"}


paths = st.lists(
    st.sampled_from([b"a", b"b", b"..", b".", b"canary", b""]), min_size=1, max_size=4
).map(b"/".join)
hostile_members = st.builds(
    member,
    name=st.one_of(paths, paths.map(lambda path: b"top/" + path)),
    kind=st.sampled_from([b"0", b"1", b"2", b"2", b"5", b"6", b"S"]),
    data=st.binary(max_size=30),
    link=st.one_of(
        paths, paths.map(lambda path: b"top/" + path), paths.map(lambda path: b"../" + path)
    ),
    mode=st.integers(0, 0o7777).map(lambda mode: mode | 0o700),
)


@ROOMY
@given(st.lists(hostile_members, max_size=12), st.booleans(), st.booleans())
def test_no_archive_writes_outside_its_target_or_leaves_a_link_that_leads_out(
    members: list[bytes], rename_root: bool, exists: bool
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        target, canary = Path(scratch, "home", "target"), Path(scratch, "home", "canary")
        canary.mkdir(parents=True)
        (canary / "a").write_text("kept")
        if exists:
            (target / "a").mkdir(parents=True)
            (target / "b").symlink_to(canary)
        before = snapshot(canary)
        try:
            unpack(b"".join([*members, END]), target, rename_root=rename_root)
        except TransferError:
            pass
        assert snapshot(canary) == before
        assert set(os.listdir(scratch)) == {"home"}
        assert set(os.listdir(canary.parent)) <= {"canary", "target"}
        for path, (kind, mode, *_) in snapshot(target).items() if os.path.lexists(target) else ():
            assert kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
            assert int(str(mode)) <= 0o777
            here = os.path.join(os.fsencode(target), path)
            mine = kind == stat.S_IFLNK and os.readlink(here) == os.fsencode(canary)
            assert mine or (os.path.realpath(here) + b"/").startswith(os.fsencode(target) + b"/"), (
                path
            )


@ROOMY
@given(st.data())
def test_a_truncated_or_damaged_archive_raises_an_error_and_leaves_no_partial_files(
    data: st.DataObject,
) -> None:
    file = member(b"top/" + b"n" * 200, data=b"d" * 700)
    whole = member(b"top", b"5") + file + member(b"top/l", b"2", link=b"x") + END
    with tempfile.TemporaryDirectory() as scratch:
        cut = data.draw(st.integers(0, len(whole) - len(END)))
        with pytest.raises(TransferError, match=r"ends|empty"):
            unpack(whole[:cut], Path(scratch, "t"))
        assert os.listdir(scratch) == []
        damaged = bytearray(whole)
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        try:
            unpack(bytes(damaged), Path(scratch, "t"))
        except TransferError:
            assert os.listdir(scratch) == []


class Endless(io.RawIOBase):
    """A stream that repeats a pattern after its head without end."""

    def __init__(self, head: bytes, pattern: bytes) -> None:
        self._pattern, self._pending = pattern * (65536 // len(pattern)), head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._pending = self._pending or self._pattern
        taken = self._pending[: len(buffer)]
        buffer[: len(taken)] = taken
        self._pending = self._pending[len(taken) :]
        return len(taken)


BOMBS = {
    "one endless file": (Endless(member(b"top", size=1 << 40), b"\0" * 512), "max_bytes"),
    "endless small files": (Endless(b"", member(b"top/f", data=b"x")), "max_members"),
    "endless hard links": (
        Endless(member(b"top/f"), member(b"top/h", b"1", link=b"top/f")),
        "max_members",
    ),
    "endless refused links": (Endless(b"", member(b"top/l", b"2", link=b"/f")), "max_members"),
    "a giant long name": (Endless(member(b"top", b"L", size=1 << 30), b"n" * 512), "header record"),
    "a giant PAX record": (
        Endless(member(b"top", b"x", size=1 << 30), b"n" * 512),
        "header record",
    ),
    "endless long names": (Endless(b"", member(b"top", b"L", data=b"n" * 512)), "header records"),
    "a deep name": (io.BytesIO(member(b"d/" * 200) + END), "max_depth"),
    "directories that names imply": (
        io.BytesIO(b"".join(member(b"%d/" % at + b"d/" * 100 + b"f") for at in range(20)) + END),
        "max_members",
    ),
}


@pytest.mark.parametrize(("stream", "cap"), BOMBS.values(), ids=BOMBS.keys())
def test_an_archive_bomb_is_stopped_by_a_named_limit_with_little_memory(
    stream: io.RawIOBase, cap: str, tmp_path: Path
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnsafeArchiveError, match=cap):
            extract_tree(cast(BinaryIO, stream), tmp_path / "t", limits=LIMITS, rename_root=False)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert os.listdir(tmp_path) == []
    assert not stream.closed


class Counting(Endless):
    """Records the largest number of files, directories and links that exist while it is read."""

    def __init__(self, pieces: Iterator[bytes], root: Path) -> None:
        super().__init__(b"", b"-" * 512)
        self.most = 0
        self._pieces, self._root = pieces, root

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = [name for _, *names in os.walk(self._root) for some in names for name in some]
        self.most = max(self.most, len(found))
        self._pending = self._pending or next(self._pieces)
        return super().readinto(buffer)


INODES = {
    "files": lambda number: member(b"top/%d" % number),
    "directories": lambda number: member(b"top/%d" % number, b"5"),
    "directories that names imply": lambda number: member(
        b"top/%d/%s" % (number, b"d/" * 9 + b"f")
    ),
    "links": lambda number: member(b"top/%d" % number, b"2", link=b"f"),
}


@pytest.mark.parametrize("make", INODES.values(), ids=INODES.keys())
def test_the_limit_of_members_is_checked_before_each_member_is_made(
    make: Callable[[int], bytes], tmp_path: Path
) -> None:
    limits = ExtractLimits(max_bytes=1 << 30, max_members=50)
    stream = Counting((make(number) for number in itertools.count()), tmp_path)
    with pytest.raises(
        UnsafeArchiveError, match=r"more than 50 files, directories and links.*max_members"
    ):
        extract_tree(cast(BinaryIO, stream), tmp_path / "t", limits=limits)
    assert 1 < stream.most <= 51  # includes the staging directory
    assert os.listdir(tmp_path) == []


def test_an_archive_with_exactly_the_maximum_of_members_is_extracted(tmp_path: Path) -> None:
    members = [
        member(b"top", b"5"),
        *(member(b"top/%d" % number, b"5") for number in range(9)),
        END,
    ]
    assert unpack(b"".join(members), tmp_path / "t", ExtractLimits(max_members=10)).members == 10
    with pytest.raises(UnsafeArchiveError, match="max_members"):
        unpack(b"".join(members), tmp_path / "u", ExtractLimits(max_members=9))


def test_an_error_in_before_install_prevents_the_installation(tmp_path: Path) -> None:
    def refuse() -> None:
        assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == []
        raise KeyError

    archive = io.BytesIO(member(b"top", data=b"x") + END)
    with pytest.raises(KeyError):
        extract_tree(archive, tmp_path / "t", limits=LIMITS, before_install=refuse)
    assert os.listdir(tmp_path) == []


FULL_DISK = """
import os, sys
from hyperruntime.errors import TransferError
from hyperruntime.transfer.extract import ExtractLimits, extract_tree
try:
    extract_tree(sys.stdin.buffer, sys.argv[1] + "/t", limits=ExtractLimits())
except TransferError as error:
    print(error, type(error.__cause__).__name__, os.listdir(sys.argv[1]))
"""


@pytest.mark.parametrize("data", [[b"x" * (4 << 20)], [b""] * 400], ids=["of space", "of inodes"])
def test_a_full_disk_raises_a_clear_error_and_leaves_no_files(
    tmp_path: Path, data: list[bytes]
) -> None:
    archive = (
        member(b"top", b"5")
        + b"".join(member(b"top/%d" % at, data=one) for at, one in enumerate(data))
        + END
    )
    mount = 'mount -t tmpfs -o size=1m,nr_inodes=100 none "$1" && exec "$2" -c "$3" "$1"'
    args = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        mount,
        "sh",
        str(tmp_path),
        sys.executable,
    ]
    done = subprocess.run([*args, FULL_DISK], input=archive, capture_output=True, check=True)
    assert b"No space left on device" in done.stdout
    assert done.stdout.endswith(
        b"nothing was written: free space there or choose another target OSError []\n"
    )


def test_after_a_full_disk_during_a_merge_the_error_mentions_partial_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename is patched to fail: ext4 may need space to enlarge a directory, a file system in
    memory never does.
    """
    moved: list[bytes] = []
    move = os.rename

    def rename(old: bytes, new: bytes, **where: int) -> None:
        if moved:
            raise OSError(errno.ENOSPC, "No space left on device")
        moved.append(new)
        move(old, new, **where)

    monkeypatch.setattr(os, "rename", rename)
    archive = b"".join(
        [member(b"top", b"5"), member(b"top/a", data=b"a"), member(b"top/b", data=b"b"), END]
    )
    (tmp_path / "there").mkdir()
    with pytest.raises(
        TransferError,
        match="No space left on device; a part of it may have been written: free space",
    ):
        unpack(archive, tmp_path / "there")
    assert [os.fsencode(name) for name in os.listdir(tmp_path / "there")] == moved


def test_a_member_above_its_own_limit_is_refused_and_the_others_are_extracted(
    tmp_path: Path,
) -> None:
    limits = ExtractLimits(max_bytes=10_000, max_members=10, max_member_bytes=100)
    archive = member(b"top/big", data=b"x" * 101) + member(b"top/small", data=b"x") + END
    report = unpack(archive, tmp_path / "t", limits)
    assert os.listdir(tmp_path / "t") == ["small"]
    assert report.refused[0][0] == "top/big"
    assert report.bytes == 1


def test_an_existing_directory_is_merged_and_its_links_are_replaced(tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    (target / "full").mkdir(parents=True)
    elsewhere.mkdir()
    for name in ("kept", "old", "full/kept"):
        (target / name).write_text(name)
    for name in ("link", "foreign"):
        (target / name).symlink_to(elsewhere)
    (target / "file link").symlink_to(elsewhere / "made")
    target.chmod(0o700)
    archive = [
        member(b"top", b"5", mode=0o755),
        member(b"top/old", data=b"new"),
        member(b"top/link/f", data=b"f"),
        member(b"top/file link", data=b"f"),
        member(b"top/full", data=b"no"),
        member(b"top/new/out", b"2", link=b"../foreign/secret"),
    ]
    report = unpack(b"".join([*archive, END]), target)
    assert [name for name, _ in report.refused] == ["full", "new/out"]
    files = {name: entry[2] for name, entry in snapshot(target).items() if entry[0] == stat.S_IFREG}
    assert files == {
        b"kept": b"kept",
        b"old": b"new",
        b"full/kept": b"full/kept",
        b"link/f": b"f",
        b"file link": b"f",
    }
    assert os.listdir(elsewhere) == []
    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_a_link_at_the_target_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name, archive in (("a", member(b"top", data=b"x")), ("b", member(b"top/f", data=b"x"))):
        (tmp_path / name).symlink_to("elsewhere")
        unpack(archive + END, tmp_path / name)
        assert not (tmp_path / name).is_symlink()
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_target_that_cannot_be_written_raises_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "f").touch()
    for target, error in (("missing/t", "No such file"), ("full/f/t", "Not a directory")):
        with pytest.raises(TransferError, match=error):
            unpack(member(b"top", data=b"x") + END, tmp_path / target)
    with pytest.raises(UnsafeArchiveError, match="a directory has its name"):
        unpack(member(b"top", data=b"x") + END, tmp_path / "full")
    with pytest.raises(UnsafeArchiveError, match="holds no entry") as caught:
        unpack(member(b"top", b"2", link=b"x") + END, tmp_path / "t")
    assert caught.value.refused == (("top", "a symbolic link that leads out of the tree"),)
    with pytest.raises(SpecError):
        ExtractLimits(max_bytes=0, max_members=1)


def test_a_large_file_is_sent_and_received_through_a_pipe_with_little_memory(
    tmp_path: Path,
) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(96 << 20)
        file.write(b"front")
    reader, writer = os.pipe()
    with subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.PIPE, bufsize=0) as echo:
        os.close(reader)
        tracemalloc.start()
        if (sender := os.fork()) == 0:
            with open(writer, "wb") as pipe:
                pipe.writelines(read_tree(tmp_path / "large", "large"))
            os._exit(0 if tracemalloc.get_traced_memory()[1] < 8 << 20 else 1)
        os.close(writer)
        assert echo.stdout is not None
        limits = ExtractLimits(max_bytes=1 << 30, max_members=2)
        report = extract_tree(cast(BinaryIO, echo.stdout), tmp_path / "copy", limits=limits)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert os.waitpid(sender, 0)[1] == 0
    assert peak < 8 << 20
    assert report.bytes == 96 << 20
    assert (tmp_path / "copy").stat().st_mtime_ns // 10**9 == (
        tmp_path / "large"
    ).stat().st_mtime_ns // 10**9
    with (tmp_path / "copy").open("rb") as file:
        assert file.read(8) == b"front\0\0\0"
