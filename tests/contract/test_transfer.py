"""Copying in and out: exact for what is ours, harmless for what is hostile."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import SpecError, TransferError, UnsafeArchiveError
from hyperruntime.transfer.extract import ExtractLimits

pytestmark = pytest.mark.engine

HOSTILE = r"""
import io, os, sys, tarfile
def add(archive, name, kind=tarfile.REGTYPE, link="", data=b"evil"):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, 0o755
    member.size = len(data) if kind == tarfile.REGTYPE else 0
    archive.addfile(member, io.BytesIO(data) if member.size else None)
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    add(archive, "tree", tarfile.DIRTYPE)
    add(archive, "tree/good")
    add(archive, "/absolute")
    add(archive, "tree/../../climbed")
    add(archive, "../sibling")
    add(archive, "tree/out", tarfile.SYMTYPE, "../../canary")
    add(archive, "tree/out/written-through")
    add(archive, "tree/abs", tarfile.SYMTYPE, "/etc/passwd")
    add(archive, "tree/abs")
    add(archive, "tree/hard", tarfile.LNKTYPE, "/etc/passwd")
    add(archive, "tree/fifo", tarfile.FIFOTYPE)
    add(archive, "tree/device", tarfile.CHRTYPE)
    add(archive, "tree/last")
"""


def snapshot(root: Path) -> dict[str, tuple[int, bytes | str]]:
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(root.rglob("*")):
        name = os.fsencode(path.relative_to(root)).decode(errors="backslashreplace")
        mode = path.lstat().st_mode
        if path.is_symlink():
            found[name] = (stat.S_IFMT(mode), os.readlink(path))
        else:
            found[name] = (mode, path.read_bytes() if path.is_file() else "")
    return found


@pytest.fixture
def tree(odd_path: Path) -> Path:
    root = odd_path / "tree"
    (root / "empty").mkdir(parents=True)
    (root / "deep/er").mkdir(parents=True)
    (root / "deep/er/script.sh").write_text("#!/bin/sh\necho hi\n")
    (root / "deep/er/script.sh").chmod(0o755)
    (root / "secret").write_bytes(bytes(range(256)))
    (root / "secret").chmod(0o600)
    (root / "new\nline 'quote\" -x").write_text("odd")
    (root / "-rf").write_text("dash")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe")).write_text("not utf-8")
    (root / "link").symlink_to("deep/er/script.sh")
    (root / "dangling").symlink_to("nowhere")
    (root / ("n" * 200)).write_text("long")
    return root


def test_a_tree_comes_back_as_it_went(shell_container: hr.Container, tree: Path, odd_path: Path) -> None:
    shell_container.put(tree, "/data/in side/tree")
    report = shell_container.get("/data/in side/tree", odd_path / "back")
    assert report.refused == ()
    assert snapshot(odd_path / "back") == snapshot(tree)


def test_one_file_goes_to_exactly_the_named_path(container: hr.Container, tmp_path: Path) -> None:
    (tmp_path / "local name").write_bytes(b"\0\xff")
    container.put(tmp_path / "local name", "/made/on the way/inside")
    assert container.exec(["cat", "/made/on the way/inside"]).stdout == b"\0\xff"
    container.get("/made/on the way/inside", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"\0\xff"


def test_a_directory_that_exists_is_merged_into(container: hr.Container, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
        container.put(tmp_path / name, "/merged")
    assert container.exec(["ls", "/merged"]).stdout == b"one\ntwo\n"


def test_missing_paths_and_read_only_targets_are_clear_errors(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image, read_only_rootfs=True)) as started:
        with pytest.raises(TransferError, match="no such file"):
            started.put(tmp_path / "nothing", "/tmp/x")
        with pytest.raises(TransferError, match="no such file"):
            started.get("/nothing", tmp_path / "x")
        (tmp_path / "file").write_text("x")
        with pytest.raises(TransferError, match="Read-only file system"):
            started.put(tmp_path / "file", "/usr/x")
        with pytest.raises(SpecError, match="absolute"):
            started.put(tmp_path / "file", "relative")
        started.put(tmp_path / "file", "/tmp/file")
        assert started.exec(["cat", "/tmp/file"]).stdout == b"x"
    assert not (tmp_path / "x").exists()


def test_a_hostile_tree_writes_nothing_outside_and_is_named(container: hr.Container, tmp_path: Path) -> None:
    (tmp_path / "canary").mkdir()
    container.exec(["mkdir", "-p", "/usr/local/bin"]).check()
    container.exec(["sh", "-c", "cat > /evil.py"], input=HOSTILE.encode()).check()
    container.exec(["sh", "-c", "printf '#!/bin/sh\\nexec python3 /evil.py\\n' > /usr/local/bin/tar"]).check()
    container.exec(["chmod", "755", "/usr/local/bin/tar"]).check()
    try:
        report = container.get("/etc", tmp_path / "target")
    finally:
        container.exec(["rm", "/usr/local/bin/tar"]).check()
    assert {p.name for p in tmp_path.iterdir()} == {"canary", "target"}
    assert list((tmp_path / "canary").iterdir()) == []
    kept = {p.name for p in (tmp_path / "target").iterdir()}
    assert {"good", "last"} <= kept <= {"good", "last", "abs", "out"}
    assert not any(path.is_symlink() for path in (tmp_path / "target").iterdir())
    refused = " ".join(name for name, _ in report.refused)
    for name in ("absolute", "climbed", "sibling", "out", "abs", "hard", "fifo", "device"):
        assert name in refused, report.refused


def test_a_bomb_is_stopped_at_the_cap_and_leaves_nothing(container: hr.Container, tmp_path: Path) -> None:
    container.exec(["sh", "-c", "mkdir -p /bomb; truncate -s 1G /bomb/sparse"]).check()
    with pytest.raises(UnsafeArchiveError):
        container.get("/bomb", tmp_path / "bomb", limits=ExtractLimits(max_bytes=1 << 20, max_members=100))
    container.exec(["sh", "-c", "rm /bomb/sparse; cd /bomb; for i in $(seq 300); do : > $i; done"]).check()
    with pytest.raises(UnsafeArchiveError):
        container.get("/bomb", tmp_path / "bomb", limits=ExtractLimits(max_bytes=1 << 20, max_members=100))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_gibibyte_goes_in_and_out_with_flat_memory(container: hr.Container, tmp_path: Path) -> None:
    size = 1 << 30
    with open(tmp_path / "big", "wb") as big:
        big.truncate(size)
        for place in range(0, size, 1 << 26):
            big.seek(place)
            big.write(os.urandom(4096))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    container.put(tmp_path / "big", "/big")
    container.get("/big", tmp_path / "back")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    container.exec(["rm", "/big"])
    with open(tmp_path / "big", "rb") as big, open(tmp_path / "back", "rb") as back:
        while chunk := big.read(1 << 22):
            assert chunk == back.read(1 << 22)
        assert back.read(1) == b""
    assert grown < 64
