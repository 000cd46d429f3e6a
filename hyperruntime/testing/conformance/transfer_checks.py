"""Checks of trees of files: exact copies and snapshots of them, and no harm from hostile ones."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

from hyperruntime.container import Container
from hyperruntime.errors import (
    ContainerStateError,
    TransferError,
    TransferTimeoutError,
    UnsafeArchiveError,
)
from hyperruntime.testing.conformance.check import check, expect, expect_equal, expect_error
from hyperruntime.testing.conformance.context import Context, left_of, marker, shell
from hyperruntime.transfer.extract import ExtractLimits

INSIDE = "/tmp/conformance"  # noqa: S108 - inside a container
TOOLS = f"{INSIDE}-tools"
TOOLS_PATH = {"PATH": f"{TOOLS}:/usr/local/bin:/usr/bin:/bin"}
# (member, kind, link) of a hostile archive.
HOSTILE = (
    ("tree", tarfile.DIRTYPE, ""),
    ("tree/good", tarfile.REGTYPE, ""),
    ("/absolute", tarfile.REGTYPE, ""),
    ("tree/../../climbed", tarfile.REGTYPE, ""),
    ("../sibling", tarfile.REGTYPE, ""),
    ("tree/out", tarfile.SYMTYPE, "../../canary"),
    ("tree/out/written-through", tarfile.REGTYPE, ""),
    ("tree/rooted", tarfile.SYMTYPE, "/etc/passwd"),
    ("tree/rooted", tarfile.REGTYPE, ""),
    ("tree/hard", tarfile.LNKTYPE, "/etc/passwd"),
    ("tree/fifo", tarfile.FIFOTYPE, ""),
    ("tree/device", tarfile.CHRTYPE, ""),
    ("tree/last", tarfile.REGTYPE, ""),
)


@check("transfer.tree")
def tree(context: Context) -> None:
    """A tree is copied in and out unchanged: links, modes, empty directories, every file name."""
    place = context.place()
    source = place / "tree"
    _make_tree(source)
    context.container.put(source, f"{INSIDE}/in side/tree")
    inside = shell(
        context.container,
        'cd "$1" && test -L link && test -x deep/er/script && ./link',
        f"{INSIDE}/in side/tree",
    )
    expect_equal(inside.stdout, b"ran\n", f"running a link to a copied script ({inside.stderr!r})")
    report = context.container.get(f"{INSIDE}/in side/tree", place / "back")
    expect_equal(report.refused, (), "refused members on the way back")
    expect_equal(_snapshot(place / "back"), _snapshot(source), "the tree after copying in and out")


def _make_tree(root: Path) -> None:
    (root / "empty").mkdir(parents=True)
    (root / "deep/er").mkdir(parents=True)
    (root / "deep/er/script").write_text("#!/bin/sh\necho ran\n")
    (root / "deep/er/script").chmod(0o755)
    (root / "private").write_bytes(bytes(range(256)))
    (root / "private").chmod(0o600)
    for name in (b"new\nline 'quote\" -x", b"-rf", b"\xff\xfe", b"n" * 200):
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_text("odd")
    (root / "link").symlink_to("deep/er/script")
    (root / "dangling").symlink_to("nowhere")


def _snapshot(root: Path) -> dict[str, tuple[int, bytes | str]]:
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if path.is_symlink():
            content: bytes | str = os.readlink(path)
            mode = stat.S_IFMT(mode)
        else:
            content = path.read_bytes() if path.is_file() else ""
        found[ascii(str(path.relative_to(root)))] = (mode, content)
    return found


@check("transfer.file")
def one_file(context: Context) -> None:
    """One file is copied to exactly the given path; missing parents are made."""
    place = context.place()
    (place / "local name").write_bytes(b"\0\xff\n" * 100_000)
    context.container.put(place / "local name", f"{INSIDE}/made/on the way")
    expect_equal(
        context.container.exec(["cat", f"{INSIDE}/made/on the way"]).stdout,
        b"\0\xff\n" * 100_000,
        "the file inside",
    )
    context.container.get(f"{INSIDE}/made/on the way", place / "back")
    expect_equal((place / "back").read_bytes(), b"\0\xff\n" * 100_000, "the file after copying out")


@check("transfer.clear-errors")
def clear_errors(context: Context) -> None:
    """A missing path is an error that names it, and leaves no files."""
    place = context.place()
    with expect_error(TransferError, "putting a missing file", "nothing", "no such file"):
        context.container.put(place / "nothing", f"{INSIDE}/x")
    with expect_error(TransferError, "getting a missing file", "/no/such/file"):
        context.container.get("/no/such/file", place / "x")
    expect_equal(list(place.iterdir()), [], "remaining files")


@check("transfer.hostile-tree")
def hostile_tree(context: Context) -> None:
    """Copying a hostile tree out writes nothing outside the target, and reports each refused
    member.
    """
    place = context.place()
    (place / "canary").mkdir()
    (place / "archive").write_bytes(_hostile_archive())
    with context.start(env=TOOLS_PATH) as container:
        container.put(place / "archive", f"{TOOLS}/archive")
        _replace_tar(container, f"exec cat {TOOLS}/archive")
        report = container.get("/usr", place / "target")
    expect_equal(
        {path.name for path in place.iterdir()},
        {"canary", "archive", "target"},
        "files beside the target",
    )
    expect_equal(list((place / "canary").iterdir()), [], "files written through a link")
    kept = {path.name for path in (place / "target").iterdir()}
    expect(
        {"good", "last"} <= kept <= {"good", "last", "out", "rooted"},
        f"the target contains {sorted(kept)}",
    )
    links = [path.name for path in (place / "target").rglob("*") if path.is_symlink()]
    expect_equal(links, [], "links in the target that lead out of it")
    refused = " ".join(name for name, _ in report.refused)
    for name in ("absolute", "climbed", "sibling", "out", "rooted", "hard", "fifo", "device"):
        expect(name in refused, f"{name} is not reported as refused: {report.refused}")


def _replace_tar(container: Container, script: str) -> None:
    text = f'#!/bin/sh\ncase "$*" in *"/dev/null"*) exit 1; esac\n{script}\n'
    write = 'mkdir -p "$1" && cat >"$1/tar" && chmod 755 "$1/tar"'
    shell(container, write, TOOLS, input=text.encode()).check()


def _hostile_archive() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, kind, link in HOSTILE:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = link
            member.mode = 0o755
            member.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"evil") if member.size else None)
    return data.getvalue()


@check("transfer.bomb")
def bomb(context: Context) -> None:
    """Copying out a tree above the byte or member limit fails and leaves no files."""
    place = context.place()
    limits = ExtractLimits(max_bytes=1 << 20, max_members=100)
    large = (
        f"mkdir -p {INSIDE}/large && dd if=/dev/zero of={INSIDE}/large/sparse bs=1 count=1 "
        "seek=50000000"
    )
    members = (
        f"mkdir -p {INSIDE}/many && cd {INSIDE}/many && i=0; while [ $i -lt 300 ]; do : >$i; "
        "i=$((i + 1)); done"
    )
    for name, script in (("large", large), ("many", members)):
        shell(context.container, script).check()
        with expect_error(UnsafeArchiveError, f"a tree that is too {name}"):
            context.container.get(f"{INSIDE}/{name}", place / name, limits=limits)
        shell(context.container, f"rm -rf {INSIDE}/{name}")
    expect_equal(list(place.iterdir()), [], "remaining files")


@check("transfer.deadline")
def deadline(context: Context) -> None:
    """A copy ends at its deadline even if tar hangs; no process and no file is left on either
    side.
    """
    place = context.place()
    (place / "file").write_bytes(bytes(1 << 22))
    with context.start(env=TOOLS_PATH) as container:
        shell(container, f"mkdir {INSIDE}").check()
        _replace_tar(
            container,
            f"(setsid sleep {(mark := marker())} &) 2>/dev/null; sleep {mark} & exec sleep {mark}",
        )
        with expect_error(
            TransferTimeoutError, "getting from a tar that never ends", "/usr", "timeout_s"
        ):
            container.get("/usr", place / "target", timeout_s=0.5)
        with expect_error(
            TransferTimeoutError, "putting to a tar that never ends", f"{INSIDE}/file", "timeout_s"
        ):
            container.put(place / "file", f"{INSIDE}/file", timeout_s=0.5)
        expect_equal(left_of(container, mark), [], "remaining processes of tar")
        expect_equal(
            shell(container, f"ls -A {INSIDE}").stdout, b"", "remaining files in the container"
        )
    expect_equal([path.name for path in place.iterdir()], ["file"], "remaining files on the host")


@check("transfer.endless")
def endless(context: Context) -> None:
    """A tar that keeps sending after the end of its archive is ended, and no file is kept."""
    place = context.place()
    (place / "archive").write_bytes(_hostile_archive())
    with context.start(env=TOOLS_PATH) as container:
        container.put(place / "archive", f"{TOOLS}/archive")
        _replace_tar(container, f"cat {TOOLS}/archive; exec cat /dev/zero")
        with expect_error(
            UnsafeArchiveError, "getting an archive with data after its end", "after the end"
        ):
            container.get("/usr", place / "target", timeout_s=120)
    expect_equal(
        [path.name for path in place.iterdir()], ["archive"], "remaining files on the host"
    )


# Every kind of change to the files of an image, and to those of a lower layer.
_FIRST = """
umask 022
mkdir -p /kept/deep /gone/deep /again && echo one >/kept/file && echo old >/again/old
ln /kept/file /kept/hard && ln -s ../kept/file /kept/soft && echo x >/kept/secret
chmod 4711 /kept/file && chmod 0600 /kept/secret && rm -rf /etc/profile /usr/share/doc
mkfifo /kept/fifo && touch -d '2001-02-03 04:05:06' /kept/deep
"""
_SECOND = """
echo two >/kept/file.new && mv /kept/file.new /kept/other && rm -rf /gone /kept/secret
rm -rf /again && mkdir /again && echo new >/again/new
"""
# Of a directory the number of links is left out, since an overlay may always say 1, and the size,
# which is that of one layer.
_LIST = """
cd /
{
    ls -ld --time-style=+%s /kept/deep 2>/dev/null || ls -ld /kept/deep
    ls -la /kept /gone /again /usr/share/doc /etc/profile 2>&1
} | sed '/^d.* \\.\\.$/d; s/  */ /g; s/^\\(d[^ ]*\\) [0-9]* \\([^ ]* [^ ]*\\) [0-9]*/\\1 \\2/'
cat /kept/file /kept/hard /again/*
"""


def _shown(container: Container) -> str:
    return shell(container, _LIST).stdout.decode(errors="replace")


@check("snapshot.files", needs="snapshot")
def files(context: Context) -> None:
    """A container that starts from a snapshot has its files: bytes, modes, links, times, and what
    was removed or made again.
    """
    with context.start() as container:
        shell(container, _FIRST).check()
        first = container.snapshot()
        shell(container, _SECOND).check()
        seen = _shown(container)
        second = container.snapshot()
        expect_equal(_shown(container), seen, "the files of the container itself")
        shell(container, "echo later >/kept/later").check()
        with context.runtime.container(context.spec(), base=second) as other:
            expect_equal(_shown(other), seen, "the files of another container")
        with context.runtime.container(context.spec(), base=first) as other:
            found = shell(other, "cat /kept/file /again/*; ls /kept/secret /kept/later").stdout
            expect_equal(found, b"one\nold\n/kept/secret\n", "the files of the first snapshot")


@check("snapshot.rollback", needs="snapshot")
def rollback(context: Context) -> None:
    """A rollback puts the files of a container back and ends its processes; it keeps its name."""
    mark = marker()
    with context.start() as container:
        shell(container, "echo one >/state").check()
        snapshot = container.snapshot()
        name = container.name
        for _ in range(3):
            shell(container, "rm /state; echo two >/other; sleep $1 >/dev/null 2>&1 &", mark)
            container.rollback(snapshot)
            found = shell(container, "cat /state; ls /other").stdout
            expect_equal(found, b"one\n", "the files after a rollback")
            expect_equal(left_of(container, mark), [], "processes after a rollback")
        expect_equal(container.name, name, "the name after a rollback")
        expect(container.is_alive, "a container that was rolled back does not count as alive")


@check("snapshot.fork", needs="snapshot")
def fork(context: Context) -> None:
    """A fork has the files of its parent, and neither sees what the other does later."""
    with context.start() as parent:
        shell(parent, "echo one >/state").check()
        with parent.fork() as child, child.fork() as grandchild:
            shell(child, "echo child >/state").check()
            shell(parent, "echo parent >/state").check()
            found = [shell(one, "cat /state").stdout for one in (parent, child, grandchild)]
            expect_equal(found, [b"parent\n", b"child\n", b"one\n"], "the files of the three")


@check("snapshot.running", needs="snapshot")
def running(context: Context) -> None:
    """A snapshot with processes alive is refused, unless that is allowed; then they go on."""
    mark = marker()
    with context.start() as container:
        shell(container, "echo one >/state; sleep $1 >/dev/null 2>&1 &", mark).check()
        with expect_error(ContainerStateError, "a snapshot with a process", "1 processes"):
            container.snapshot()
        snapshot = container.snapshot(allow_running=True)
        expect_equal(len(left_of(container, mark)), 1, "processes after a snapshot")
        with context.runtime.container(context.spec(), base=snapshot) as other:
            expect_equal(shell(other, "cat /state").stdout, b"one\n", "the files of another one")
            expect_equal(left_of(other, mark), [], "processes of another one")
