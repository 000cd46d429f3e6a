"""A timeout ends everything that a command started, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import hyperruntime as hr
from hyperruntime.errors import ExecStartError
from hyperruntime.host.process import wait_until
from hyperruntime.spec import ExecResult
from tests.contract.waits import begun_in_time

HANG_S = 60.0  # no promise: `make bench` measures how late a deadline is
pytestmark = pytest.mark.engine

ESCAPES = {
    "a child": "sleep 911; true",
    "a background child that holds stdout": "sleep 911 & sleep 912",
    "a daemon in a session of its own": "setsid sleep 911 & sleep 912",
    "a daemon with an empty environment and no parent": "(env -i setsid sleep 911 &); sleep 912",
    "one that ignores TERM": "trap '' TERM INT HUP; sleep 911; sleep 912",
    "one that closed its streams": "setsid sleep 911 <&- >&- 2>&- & sleep 912",
    "one that lowered its own limits": "ulimit -n 64; ulimit -c 0; setsid sleep 911 & sleep 912",
    "a stopped one": "sleep 911 & kill -STOP $!; sleep 912",
}
FORK_LOOP = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
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


def run(container: hr.Container, script: str, timeout_s: float = 0.5) -> ExecResult:
    started = time.monotonic()
    result = container.exec(["sh", "-c", script], timeout_s=timeout_s)
    assert time.monotonic() - started < timeout_s + HANG_S
    return result


@pytest.mark.parametrize("script", ESCAPES.values(), ids=list(ESCAPES))
def test_nothing_escapes(container: hr.Container, processes: Callable[[], list[str]], script: str) -> None:
    result = begun_in_time(lambda: run(container, f"echo before; {script}"))
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, b"before\n")
    assert processes() == []


@pytest.mark.parametrize(
    "script", ["sleep 911; true", "sleep 911 & sleep 912", "trap '' TERM INT HUP; sleep 911; sleep 9"]
)
def test_nothing_escapes_with_any_shell(shell_container: hr.Container, script: str) -> None:
    assert run(shell_container, script).timed_out
    left = shell_container.exec(["sh", "-c", "for p in /proc/[0-9]*; do cat $p/cmdline 2>/dev/null; done"]).stdout
    assert b"sleep" not in left


def test_siblings_live_on(container: hr.Container) -> None:
    with ThreadPoolExecutor(2) as threads:
        sibling = threads.submit(container.exec, ["sh", "-c", "for i in 1 2 3; do sleep 0.5; echo $i; done"])
        for _ in range(3):
            assert run(container, "setsid sleep 913 & sleep 914", 0.3).timed_out
        assert sibling.result().stdout == b"1\n2\n3\n"


def test_a_daemon_of_an_earlier_exec_lives_on(container: hr.Container, processes: Callable[[], list[str]]) -> None:
    container.exec(["sh", "-c", "setsid sleep 915 >/dev/null 2>&1 &"])
    assert run(container, "sleep 916").timed_out
    assert processes() == ["sleep 915"]
    container.exec(["pkill", "-f", "sleep 915"])


def test_forty_deadlines_at_once(container: hr.Container, processes: Callable[[], list[str]]) -> None:
    script = "setsid sleep 911 & sleep 911 & sleep 912"
    waiting = "mkfifo /tmp/gate; read -r _ </tmp/gate; rm /tmp/gate; echo alive"
    with ThreadPoolExecutor(41) as pool:
        sibling = pool.submit(container.exec, ["sh", "-c", waiting])
        try:
            started = [pool.submit(run, container, script, 1.0) for _ in range(40)]
            assert all(future.result().timed_out for future in started)
            assert wait_until(lambda: processes() == [f"sh -c {waiting}"], HANG_S), processes()
        finally:
            container.exec(["sh", "-c", "echo >/tmp/gate"], timeout_s=HANG_S)
        assert sibling.result().stdout == b"alive\n"


@pytest.mark.parametrize("shell", ["bash", "busybox"])
def test_a_fork_loop_is_ended_with_any_shell(runtime: hr.Runtime, images: dict[str, str], shell: str) -> None:
    with runtime.container(hr.ContainerSpec(image=images[shell])) as started:
        loop = ["sh", "-c", 'command eval "f() { f | f & }; f"; exec sleep 100']
        with ThreadPoolExecutor(8) as pool:
            looping = pool.submit(started.exec, loop, timeout_s=1)
            others = [pool.submit(started.exec, ["true"], timeout_s=30) for _ in range(6)]  # ask for lanes meanwhile
            begin = time.monotonic()
            assert looping.result().timed_out
            assert time.monotonic() - begin < HANG_S
            assert all(isinstance(other.exception(), (ExecStartError, type(None))) for other in others)
        assert started.exec(["echo", "usable"]).stdout == b"usable\n"
        assert not started.exec(["sh", "-c", "ps | grep 'sleep 10[0]'"]).stdout


@pytest.mark.parametrize("program", [FORK_LOOP, FORK_LOOP_OF_SESSIONS], ids=["one group", "many sessions"])
def test_a_fork_loop_is_ended_in_time(runtime: hr.Runtime, base_image: str, program: str) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        begin = time.monotonic()
        result = started.exec(["python3", "-c", program], timeout_s=1)
        assert time.monotonic() - begin < HANG_S
        assert result.timed_out
        assert started.exec(["echo", "usable"]).stdout == b"usable\n"
        assert b"python3" not in started.exec(["ps", "-axo", "args="]).stdout


def test_a_chain_that_flees_from_pid_to_pid_is_ended(runtime: hr.Runtime, base_image: str) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        script = 'python3 -c "$1" & sleep 30'
        begin = time.monotonic()
        assert started.exec(["sh", "-c", script, "x", FLEEING_CHAIN], timeout_s=1).timed_out
        assert time.monotonic() - begin < HANG_S
        for _ in range(5):
            assert b"python3" not in started.exec(["ps", "-axo", "args="]).stdout


def test_output_up_to_the_deadline_is_kept(container: hr.Container) -> None:
    result = run(container, "while :; do echo tick; sleep 0.05; done", 1.0)
    assert result.timed_out
    assert result.stdout.count(b"tick\n") >= 5


def test_a_flood_of_output_does_not_delay_the_deadline(container: hr.Container) -> None:
    result = run(container, "yes", 1.0)
    assert result.timed_out
    assert result.truncated
