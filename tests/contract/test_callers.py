"""Unusual callers: odd inputs, failing callbacks, cancelled tasks, forked processes."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import hyperruntime as hr
from hyperruntime.concurrency import blocking
from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.driver import OpensShells
from hyperruntime.errors import (
    ContainerLostError,
    ExecLostError,
    StorageError,
)

pytestmark = pytest.mark.engine


class Slow(io.RawIOBase):
    """A source that cannot be polled: it returns one chunk, then blocks its reader."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.chunks = [b"first\n", b"second\n"]

    def read(self, size: int = -1) -> bytes:
        if len(self.chunks) < 2:
            self.gate.wait(300)
        return self.chunks.pop(0) if self.chunks else b""


def pipe_with(data: bytes, *, buffered: bool) -> Any:
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    return os.fdopen(read, "rb", buffering=4096 if buffered else 0)


@pytest.mark.parametrize("buffered", [True, False])
def test_data_in_the_buffer_of_a_reader_is_not_lost(
    container: hr.Container, buffered: bool
) -> None:
    with pipe_with(b"one\ntwo\nthree\n", buffered=buffered) as source:
        assert source.readline() == b"one\n"
        assert container.exec(["cat"], input=source).stdout == b"two\nthree\n"


def test_input_can_be_any_kind_of_file(container: hr.Container, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    plain, packed = tmp_path / "plain", tmp_path / "packed.gz"
    plain.write_bytes(data)
    packed.write_bytes(gzip.compress(data))
    with plain.open("rb") as source:
        source.seek(1000)
        assert container.exec(["cat"], input=source).stdout == data[1000:]
    with gzip.open(packed) as unpacked:
        assert container.exec(["cat"], input=cast("Any", unpacked)).stdout == data
    with Path(os.devnull).open("rb") as nothing:
        assert container.exec(["cat"], input=nothing).stdout == b""


def test_a_blocking_source_does_not_delay_the_deadline(container: hr.Container) -> None:
    source = Slow()
    begin = time.monotonic()
    result = container.exec(["cat"], input=cast("Any", source), timeout_s=3)
    assert time.monotonic() - begin < 60
    assert (result.timed_out, result.stdout) == (True, b"first\n")
    source.gate.set()


def test_an_exec_without_a_deadline_waits_for_a_blocking_source(container: hr.Container) -> None:
    source = Slow()
    threading.Timer(0.3, source.gate.set).start()
    assert container.exec(["cat"], input=cast("Any", source)).stdout == b"first\nsecond\n"


@pytest.mark.parametrize(
    "error", [ContainerLostError("mine"), StorageError("mine"), ValueError("mine")], ids=repr
)
def test_errors_of_the_callers_functions_are_raised_unchanged(
    container: hr.Container, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    class Failing(io.RawIOBase):
        read = fail

    with pytest.raises(type(error), match="mine") as caught:
        container.exec(["sh", "-c", "echo; sleep 933"], on_output=cast("Any", fail))
    assert caught.value is error
    with pytest.raises(type(error), match="mine"):
        container.exec(["cat"], input=cast("Any", Failing()))
    assert b"933" not in container.exec(["ps", "-axo", "args="]).stdout


def test_text_as_input_is_refused(container: hr.Container) -> None:
    with pytest.raises(TypeError, match="binary mode"):
        container.exec(["cat"], input=cast("Any", io.StringIO("text")))


async def test_cancelling_works_twice_and_for_queued_execs(
    container: hr.Container, processes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(blocking._THREADS, blocking.EXECS, 64)
    monkeypatch.setattr(blocking, "_threads", PerProcess(dict))

    slow = [asyncio.create_task(container.aexec(["sleep", "934"])) for _ in range(64)]
    queued = asyncio.create_task(container.aexec(["sleep", "935"]))
    await asyncio.sleep(1)
    assert not queued.done()
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(queued, 120)
    for _ in range(2):
        for task in slow:
            task.cancel()
        await asyncio.sleep(0)
    results = await asyncio.gather(*slow, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert processes() == []


def test_two_hundred_awaited_execs_run_at_the_same_time(
    runtime: hr.Runtime, base_image: str
) -> None:
    """R16, W1: the commands wait for each other and for the event loop, which opens the gate."""
    waits = "exec 3<>/tmp/gate; echo >>/tmp/begun; read -r _ <&3; echo all"
    opens = "[ $(wc -l </tmp/begun) -ge 100 ] && yes | head -n 300 >>/tmp/gate"

    async def open_gate(container: hr.Container) -> None:
        while (await container.aexec(["sh", "-c", opens], timeout_s=100)).exit_code != 0:
            await asyncio.sleep(0.05)

    async def scenario(started: list[hr.Container]) -> None:
        for container in started:
            container.exec(["sh", "-c", "mkfifo /tmp/gate; : >/tmp/begun"])
        calls = [
            container.aexec(["sh", "-c", waits], timeout_s=100)
            for container in started
            for _ in range(100)
        ]
        opening = asyncio.gather(*map(open_gate, started))
        assert {result.stdout for result in await asyncio.gather(*calls)} == {b"all\n"}
        await opening

    spec = hr.ContainerSpec(image=base_image, limits=hr.Limits(pids=None))
    with runtime.container(spec) as one, runtime.container(spec) as two:
        asyncio.run(scenario([one, two]))


def test_a_child_forked_during_an_exec_does_not_keep_its_input_open(
    container: hr.Container,
) -> None:
    children: list[int] = []
    forked = threading.Event()

    def fork(*_: object) -> None:
        if not children:
            children.append(os.fork())
            if children[-1] == 0:
                time.sleep(300)
                os._exit(0)
            forked.set()

    class Late(io.RawIOBase):
        """Ends after the fork; the child holds the command's input as it was then."""

        chunks = iter((b"after\n", b""))

        def read(self, size: int = -1) -> bytes:
            assert forked.wait(60)
            return next(self.chunks)

    begin = time.monotonic()
    try:
        result = container.exec(
            ["sh", "-c", "echo begun; cat"], input=cast("Any", Late()), on_output=fork
        )
        assert result.stdout == b"begun\nafter\n"
        assert time.monotonic() - begin < 60
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)


def test_a_user_can_kill_only_its_own_shell(container: hr.Container, has_users: bool) -> None:
    if not has_users or not isinstance(container._live, OpensShells):
        return
    with pytest.raises(ExecLostError, match="nobody"):
        container.exec(["sh", "-c", "kill -KILL -1"], user="nobody")
    assert container.exec(["id", "-un"], user="nobody").stdout == b"nobody\n"
    assert container.exec(["id", "-un"]).stdout == b"root\n"


@pytest.mark.parametrize(
    "forged",
    ["$N fork", "$N ²", "$N 999", "$N timeout", "0 up ²", "0 up", "$N", "\\377\\376", "$N -1"],
)
def test_a_forged_report_is_ignored(container: hr.Container, forged: str) -> None:
    # A lane numbers its execs from 1, so the command tries every number that its own may be.
    lines = "for N in $(seq 1 200); do printf '%b\\n' \"" + forged + '"; done'
    # `<>` does not wait for a reader, which a lane at rest has not.
    script = (
        f"for s in /run/hyperruntime/*/s; do {{ {lines}; }} 1<>$s & done; wait; echo mine; exit 7"
    )
    result = container.exec(["sh", "-c", script], timeout_s=120)
    assert (result.exit_code, result.stdout) == (7, b"mine\n")


JAM = """
import glob, os
for _ in range(200):
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.write(descriptor, b"x\\n" * 2048)
            os.close(descriptor)
        except OSError:
            pass
"""


def test_a_command_that_jams_the_librarys_pipes_harms_only_its_container(
    runtime: hr.Runtime, base_image: str
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        try:
            container.exec(["python3", "-c", JAM], timeout_s=60)
            assert container.exec(["echo", "here"], timeout_s=60).stdout in (b"here\n", b"")
        except ContainerLostError:
            pass
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        assert container.exec(["echo", "here"]).stdout == b"here\n"
