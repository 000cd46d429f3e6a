"""A hostile ``tar`` in the container is ended at the deadline of the copy or with its caller, and
leaves nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import SpecError, TransferError, TransferTimeoutError
from hyperruntime.host.process import wait_until
from hyperruntime.transfer.extract import ExtractLimits

pytestmark = pytest.mark.engine

EVIL, BEGUN = "/tmp/evil", "/tmp/begun"
LIMITS = ExtractLimits(max_bytes=1 << 26, max_members=500)
# The probe of the library gets exit code 1; the rest is a hostile tar.
HEAD = rf"""
import os, signal, sys, tarfile, time
if "/dev/null" in sys.argv:
    sys.exit(1)
open("{BEGUN}", "w").close()
def member(name, kind=tarfile.REGTYPE, size=0, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info.tobuf(tarfile.GNU_FORMAT)
def put(data):
    while data:
        data = data[os.write(1, data):]
def nap():
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
    while True:
        time.sleep(9401)
WHOLE = member("tree", tarfile.DIRTYPE) + member("tree/f", size=1) + b"x".ljust(512, b"\0") + bytes(1024)
def endless(made):
    number = 0
    put(member("tree", tarfile.DIRTYPE) + member("tree/f"))
    while True:
        put(b"".join(made(f"tree/{{number + at}}") for at in range(64)))
        number += 64
"""
LATE = {
    "never writes": "nap()",
    "closes its output and lives on": "os.close(1); nap()",
    "closes its output after a whole archive and lives on": "put(WHOLE); os.close(1); nap()",
    "stops in the middle": "put(WHOLE[:1500]); nap()",
    "sends a whole archive and lives on": "put(WHOLE); nap()",
    "trickles": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor at in WHOLE * 9: put(bytes([at])); "
    "time.sleep(0.1)",
    "trickles after its end": "put(WHOLE)\nwhile True: put(bytes(1)); time.sleep(0.1)",
    "writes errors for ever": "while True: os.write(2, b'e' * 4096)",
}
TOO_MUCH = {
    "zeros after its end": ("put(WHOLE)\nwhile True: put(bytes(65536))", "after the end"),
    "silence after much behind its end": ("put(WHOLE + bytes(1 << 22)); nap()", "after the end"),
    "a huge declared size, then silence": ("put(member('tree', size=1 << 60)); nap()", "max_bytes"),
    "endless directories": ("endless(lambda name: member(name, tarfile.DIRTYPE))", "max_members"),
    "no archive, then silence": ("put(b'no archive' * 1000); nap()", "archive is corrupt"),
}  # fmt: skip
UNREAD = {
    "never reads": "nap()",
    "closes its input and lives on": "os.close(0); nap()",
    "reads slowly": "while True: os.read(0, 1); time.sleep(0.1)",
    "reads all and lives on": "while os.read(0, 65536): pass\nnap()",
    "ends too late": "time.sleep(9402)",
}


@pytest.fixture(scope="module")
def container(runtime: hr.Runtime, base_image: str) -> Iterator[hr.Container]:
    """A container whose tar a test can replace."""
    spec = hr.ContainerSpec(image=base_image, env={"PATH": f"{EVIL}:/usr/local/bin:/usr/bin:/bin"})
    with runtime.container(spec) as started:
        yield started


@pytest.fixture
def evil(container: hr.Container) -> Iterator[Callable[[str], None]]:
    """Return a function that replaces the container's tar by a Python program."""

    def replace(text: str) -> None:
        script = (
            'mkdir -p "$1" && rm -f "$2" && cat >"$1/evil.py" && printf %s "$3" >"$1/tar" && '
            'chmod 755 "$1/tar"'
        )
        tar = f'#!/bin/sh\nexec python3 {EVIL}/evil.py "$@"\n'
        container.exec(
            ["sh", "-c", script, "sh", EVIL, BEGUN, tar], input=f"{HEAD}\n{text}\n".encode()
        ).check()

    yield replace
    container.exec(["rm", "-rf", EVIL, BEGUN]).check()


@pytest.fixture(autouse=True)
def nothing_is_left(
    container: hr.Container, processes: Callable[[], list[str]], tmp_path: Path
) -> Iterator[None]:
    """Check that a test leaves no process inside, and no file, thread, descriptor or lane on the
    host.
    """

    def open_second_lane(*_: object) -> None:
        container.exec(["true"]).check()

    container.exec(["echo"], on_output=open_second_lane).check()
    before = host_state(container)
    yield
    assert wait_until(lambda: processes() == [], 120), processes()
    assert container.exec(["true"]).exit_code == 0
    assert wait_until(
        lambda: all(now <= then for now, then in zip(host_state(container), before, strict=True)),
        120,
    ), (
        before,
        host_state(container),
    )
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".hyperruntime-")]
    assert (
        container.exec(["sh", "-c", "ls -A / /data 2>/dev/null | grep hyperruntime-"]).stdout == b""
    )


def host_state(container: hr.Container) -> tuple[int, ...]:
    """Return the numbers of open descriptors, of threads that copy, and of files in the
    exchange.
    """
    names = [thread.name for thread in threading.enumerate()]
    copying = names.count("hyperruntime-input") + names.count("hyperruntime-get")
    files = sum(len(found) for _, *lists in os.walk(container.exchange.source) for found in lists)
    return len(os.listdir("/proc/self/fd")), copying, files


@pytest.mark.parametrize("text", LATE.values(), ids=LATE.keys())
def test_a_get_ends_at_its_deadline(
    container: hr.Container, evil: Callable[[str], None], tmp_path: Path, text: str
) -> None:
    evil(text)
    with pytest.raises(
        TransferTimeoutError, match=r"'/etc' was not copied.*within 0\.80s.*raise timeout_s"
    ) as caught:
        container.get("/etc", tmp_path / "target", timeout_s=0.8)
    assert isinstance(caught.value, TimeoutError)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("text", "why"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_a_get_of_an_invalid_or_too_large_archive_ends_before_its_deadline(
    container: hr.Container, evil: Callable[[str], None], tmp_path: Path, text: str, why: str
) -> None:
    evil(text)
    with pytest.raises(TransferError, match=why) as caught:
        container.get("/etc", tmp_path / "target", limits=LIMITS, timeout_s=200)
    assert not isinstance(caught.value, TimeoutError)
    assert os.listdir(tmp_path) == []


def test_a_late_get_does_not_change_an_existing_directory(
    container: hr.Container, evil: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target/f").write_text("old")
    evil(LATE["sends a whole archive and lives on"])
    with pytest.raises(TransferTimeoutError):
        container.get("/etc", tmp_path / "target", timeout_s=0.8)
    assert {path.name: path.read_text() for path in (tmp_path / "target").iterdir()} == {"f": "old"}


def test_a_write_error_on_the_host_ends_a_get(
    container: hr.Container, evil: Callable[[str], None], tmp_path: Path
) -> None:
    for text in ("nap()", "while True: put(bytes(65536))"):
        evil(text)
        with pytest.raises(TransferError, match="No such file or directory") as caught:
            container.get("/etc", tmp_path / "missing/target", timeout_s=None)
        # an error of the host, not of the container
        assert isinstance(caught.value.__cause__, OSError)


@pytest.fixture
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree larger than all buffers of a copy."""
    root = tmp_path_factory.mktemp("source")
    for name in ("a", "b"):
        (root / name).write_bytes(os.urandom(1 << 16) * 128)
    return root


@pytest.mark.parametrize("text", UNREAD.values(), ids=UNREAD.keys())
def test_a_put_ends_at_its_deadline(
    container: hr.Container, evil: Callable[[str], None], source: Path, text: str
) -> None:
    evil(text)
    with pytest.raises(
        TransferTimeoutError, match=r"was not copied to '/data/tree'.*within 0\.80s"
    ):
        container.put(source, "/data/tree", timeout_s=0.8)
    assert container.exec(["sh", "-c", "ls -A /data"]).stdout == b""


HALF = (
    'import subprocess\ndata = sys.stdin.buffer.read(9 << 20)\nsubprocess.run(["/bin/tar", '
    "*sys.argv[1:]], input=data)"
)


@pytest.mark.parametrize("old", [None, "file", "link"])
def test_a_late_put_does_not_change_its_target(
    container: hr.Container, evil: Callable[[str], None], source: Path, old: str | None
) -> None:
    make = {None: ":", "file": "echo old >/data/tree", "link": "ln -s /etc/hostname /data/tree"}[
        old
    ]
    container.exec(["sh", "-c", f"mkdir -p /data; rm -rf /data/tree; {make}"]).check()
    before = container.exec(["sh", "-c", "cd /data; ls -l; cat tree 2>/dev/null"]).stdout
    evil(f"{HALF}; nap()")
    with pytest.raises(TransferTimeoutError):
        container.put(source, "/data/tree", timeout_s=2)
    assert container.exec(["sh", "-c", "cd /data; ls -l; cat tree 2>/dev/null"]).stdout == before
    container.exec(["rm", "-rf", "/data"]).check()


@pytest.mark.parametrize(
    "old", ["echo old >/data/tree", "ln -s /etc /data/tree", "ln -s gone /data/tree", ":"]
)
def test_a_put_replaces_a_file_or_link_with_the_whole_tree(
    container: hr.Container, source: Path, old: str
) -> None:
    container.exec(["sh", "-c", f"mkdir -p /data; {old}"]).check()
    container.put(source, "/data/tree")
    assert (
        container.exec(["sh", "-c", "ls -A /data; ls /data/tree; [ ! -L /data/tree ]"]).stdout
        == b"tree\na\nb\n"
    )
    container.put(source / "a", "/data/tree/b")
    assert container.exec(["cmp", "/data/tree/a", "/data/tree/b"]).exit_code == 0
    container.exec(["rm", "-rf", "/data"]).check()


def test_an_unreadable_source_ends_the_put_and_is_named(
    container: hr.Container, evil: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    os.mkfifo(tmp_path / "source/fifo")
    container.put(tmp_path / "source", "/data/tree")  # a FIFO may have no end, so it is left out
    assert container.exec(["ls", "-A", "/data/tree"]).stdout == b""
    with pytest.raises(TransferError, match="it is a FIFO"):
        container.put(tmp_path / "source/fifo", "/data/fifo")
    evil("nap()")
    with pytest.raises(TransferError, match="it is a FIFO"):
        container.put(tmp_path / "source/fifo", "/data/fifo", timeout_s=None)
    container.exec(["rm", "-rf", "/data"]).check()


def test_a_deadline_is_a_positive_number_of_seconds(
    container: hr.Container, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match="timeout_s"):
        container.get("/etc", tmp_path / "target", timeout_s=0)
    with pytest.raises(SpecError, match="timeout_s"):
        container.put(tmp_path, "/data", timeout_s=-1)


def test_an_awaited_copy_that_is_in_time_is_complete(
    container: hr.Container, source: Path, tmp_path: Path
) -> None:
    async def copy() -> int:
        await container.aput(source, "/data/tree", timeout_s=100)
        return (await container.aget("/data/tree", tmp_path / "back", timeout_s=100)).members

    assert asyncio.run(copy()) == 3
    assert (tmp_path / "back/b").read_bytes() == (source / "b").read_bytes()
    container.exec(["rm", "-rf", "/data"]).check()


@pytest.mark.parametrize("verb", ["get", "put"])
def test_a_cancelled_copy_ends_like_a_late_one(
    container: hr.Container, evil: Callable[[str], None], source: Path, tmp_path: Path, verb: str
) -> None:
    async def cancel() -> None:
        get = container.aget("/etc", tmp_path / "target", timeout_s=None)
        put = container.aput(source, "/data/tree", timeout_s=None)
        chosen, other = (get, put) if verb == "get" else (put, get)
        other.close()
        task: asyncio.Task[object] = asyncio.ensure_future(chosen)
        while (await container.aexec(["test", "-e", BEGUN])).exit_code != 0:
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    evil(LATE["sends a whole archive and lives on"])
    asyncio.run(cancel())
    assert os.listdir(tmp_path) == []
    assert container.exec(["sh", "-c", "ls -A /data 2>/dev/null"]).stdout == b""


@pytest.mark.parametrize("verb", ["get", "put"])
def test_ctrl_c_ends_a_copy(
    container: hr.Container, evil: Callable[[str], None], source: Path, tmp_path: Path, verb: str
) -> None:
    def copy() -> None:
        if verb == "get":
            container.get("/etc", tmp_path / "target", timeout_s=None)
        else:
            container.put(source, "/data/tree", timeout_s=None)

    def press(main: int) -> None:
        assert wait_until(lambda: container.exec(["test", "-e", BEGUN]).exit_code == 0, 60)
        signal.pthread_kill(main, signal.SIGINT)

    evil(LATE["sends a whole archive and lives on"])
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(press, main)
            with pytest.raises(KeyboardInterrupt):
                copy()
    finally:
        signal.signal(signal.SIGINT, before)
    assert os.listdir(tmp_path) == []
    assert container.exec(["sh", "-c", "ls -A /data 2>/dev/null"]).stdout == b""
