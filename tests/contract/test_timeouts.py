"""Processes that are hard to end are ended at a timeout and with their group, beyond the
conformance suite.
"""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from psutil import process_iter

import hyperruntime as hr
from hyperruntime.errors import ContainerLostError, ExecStartError
from hyperruntime.exec.lane import Lane
from hyperruntime.host.process import wait_until
from tests.params import first_quick

HANG_S = 60.0  # not a promise; `make bench` measures how late a deadline is
pytestmark = pytest.mark.engine

FORK_LOOP_OF_SESSIONS = """
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"""
FLEEING_CHAIN = """
import os, time
while True:
    try:
        if os.fork():
            os._exit(0)
        os.setsid()
    except OSError:
        pass
"""


@pytest.mark.parametrize("shell", ["bash", "busybox"])
def test_a_fork_loop_is_ended_with_any_shell(
    runtime: hr.Runtime, images: dict[str, str], shell: str
) -> None:
    with runtime.container(hr.ContainerSpec(image=images[shell])) as started:
        loop = ["sh", "-c", 'command eval "f() { f | f & }; f"; exec sleep 100']
        with ThreadPoolExecutor(8) as pool:
            looping = pool.submit(started.exec, loop, timeout_s=1)
            # they need lanes too
            others = [pool.submit(started.exec, ["true"], timeout_s=30) for _ in range(6)]
            begin = time.monotonic()
            assert looping.result().timed_out
            assert time.monotonic() - begin < HANG_S
            failures = [error for other in others if (error := other.exception()) is not None]
            assert [error for error in failures if not isinstance(error, ExecStartError)] == []
        assert started.exec(["echo", "usable"]).stdout == b"usable\n"
        assert not started.exec(["sh", "-c", "ps | grep 'sleep 10[0]'"]).stdout


def test_a_fork_loop_of_sessions_is_ended_in_time(runtime: hr.Runtime, base_image: str) -> None:
    """On a machine that is too busy to end the loop alone, the container ends with it, and the
    caller is told.
    """
    loop = f"# {uuid.uuid4().hex}{FORK_LOOP_OF_SESSIONS}"
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        begin, why = time.monotonic(), ""
        try:
            assert started.exec(["python3", "-c", loop], timeout_s=1).timed_out
            assert started.exec(["echo", "usable"]).stdout == b"usable\n"
            assert b"python3" not in started.exec(["ps", "-axo", "args="]).stdout
        except ContainerLostError as lost:
            why = str(lost)
        assert why == "" or ("could not be killed" in why and not started.is_alive), why
        assert time.monotonic() - begin < HANG_S
    assert wait_until(
        lambda: not any(loop in (one.info["cmdline"] or ()) for one in process_iter(["cmdline"])),
        HANG_S,
    )


def test_a_chain_of_forks_that_changes_its_pid_is_ended(
    runtime: hr.Runtime, base_image: str
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        script = 'python3 -c "$1" & sleep 30'
        begin = time.monotonic()
        assert started.exec(["sh", "-c", script, "x", FLEEING_CHAIN], timeout_s=1).timed_out
        assert time.monotonic() - begin < HANG_S
        for _ in range(5):
            assert b"python3" not in started.exec(["ps", "-axo", "args="]).stdout


def test_a_chain_of_forks_is_ended_with_its_group(runtime: hr.Runtime, base_image: str) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        started.exec(
            ["python3", "-c", f"import os\nif os.fork(): os._exit(0)\n{FLEEING_CHAIN}"],
            group="chain",
        )
        begin = time.monotonic()
        assert started.end_group("chain")
        assert time.monotonic() - begin < HANG_S
        for _ in range(3):
            assert b"python3" not in started.exec(["ps", "-axo", "args="]).stdout


COUNT = 'i=0; while command eval "sleep 100 &" 2>/dev/null; do i=$((i + 1)); echo $i; done'
FILL = 'i=0; while [ $i -lt "$0" ]; do sleep 100 & i=$((i + 1)); done; echo filled; exec sleep 100'


def can_run(started: hr.Container, count: int) -> bool | None:
    """Return whether a command can run beside so many processes; None if that is not known."""
    filled = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        fill = ["sh", "-c", FILL, str(count)]
        filling = pool.submit(started.exec, fill, on_output=lambda *_: filled.set())
        assert wait_until(lambda: filled.is_set() or filling.done(), HANG_S)
        try:
            if not filled.is_set():
                return None
            result = started.exec(["sh", "-c", "echo ran >>/out/$0", str(count)], timeout_s=2)
            assert result.timed_out or result.exit_code == 0
            return None if result.timed_out else True
        except ExecStartError:
            return False
        finally:
            started.close()


@pytest.mark.parametrize("shell", first_quick("dash", "busybox"))  # bash tries for 15 s
def test_a_command_that_may_not_start_runs_once_or_not_at_all(
    runtime: hr.Runtime,
    images: dict[str, str],
    shell: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one of the counts a lane can start, but not the process that reports its start."""
    at_once = Lane.read_status

    def read_late(lane: Lane) -> list[list[str]] | None:  # as on a busy machine
        time.sleep(0.1)
        return at_once(lane)

    monkeypatch.setattr(Lane, "read_status", read_late)
    mount = hr.Mount(source=str(tmp_path), target="/out", read_only=False)
    spec = hr.ContainerSpec(image=images[shell], limits=hr.Limits(pids=40), mounts=[mount])
    with runtime.container(spec) as started:
        most = int(started.exec(["sh", "-c", COUNT]).stdout.split()[-1])
    results: dict[int, bool | None] = {}
    for count in range(most - 6, most + 1):
        with runtime.container(spec) as started:
            results[count] = can_run(started, count)
    assert {True, False} <= set(results.values()), results
    ran = {int(path.name): path.read_text() for path in tmp_path.iterdir()}
    assert set(ran.values()) == {"ran\n"}
    assert {count for count, result in results.items() if result} <= ran.keys()
    assert {count for count, result in results.items() if result is False}.isdisjoint(ran)
