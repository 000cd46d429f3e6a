"""Processes and terminals beyond the conformance suite: small images, hostile programs, slots, and
limits.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NoReturn

import pytest

import hyperruntime as hr
from hyperruntime.errors import ExecStartError, UnsupportedOptionError, WorkdirNotFoundError
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.pty import open_pty
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.host.process import (
    PIPE,
    HostProcess,
    find_program,
    kill_group,
    spawn,
    wait_until,
)

pytestmark = pytest.mark.engine
_WAIT_S = 60.0


def read_until(terminal: Terminal, text: bytes) -> bytes:
    """Return the output up to a text, or to the end."""
    said = b""
    while text not in said and (chunk := terminal.read(_WAIT_S)):
        said += chunk
    return said


def test_a_terminal_works_in_each_shell(shell_container: hr.Container) -> None:
    script = 'echo "$0 $#"; read -r line; echo "got $line"; exit 4'
    with shell_container.terminal(["sh", "-c", script, "it's", "a b"]) as terminal:
        assert read_until(terminal, b"1\r\n") == b"it's 1\r\n"
        terminal.write(b"word\r")
        assert read_until(terminal, b"got word\r\n").endswith(b"got word\r\n")
        assert terminal.wait(_WAIT_S) == 4


def test_a_terminal_does_not_need_a_path_to_its_helpers(container: hr.Container) -> None:
    with container.terminal(["/bin/sh", "-c", "echo $PATH"], env={"PATH": "/no/such"}) as terminal:
        assert read_until(terminal, b"\n") == b"/no/such\r\n"
    with container.terminal(["no-such-program"]) as terminal:
        assert b"hyperruntime: the container has no program" in read_until(terminal, b"PATH")
        assert terminal.wait(_WAIT_S) == 127


def test_a_program_cannot_type_into_another_terminal_or_keep_one_open(
    container: hr.Container,
) -> None:
    job = "(trap '' HUP; exec sleep 300) & echo ready"
    with container.terminal(["sh", "-c", job]) as terminal:
        assert read_until(terminal, b"\n") == b"ready\r\n"
        assert terminal.wait(_WAIT_S) == 0
        assert terminal.read() == b""  # although the job holds the terminal
    steal = (
        "import fcntl, sys, termios\nfor c in 'id': fcntl.ioctl(open(sys.argv[1]), "
        "termios.TIOCSTI, c)"
    )
    with container.terminal(["sleep", "300"]) as other:
        result = container.exec(["python3", "-c", steal, other.name])
        assert result.exit_code == 1  # it is not its terminal
        with pytest.raises(TimeoutError):
            other.read(0.2)


def test_a_program_may_leave_its_terminal_and_open_it_again(container: hr.Container) -> None:
    script = (
        "echo one; exec </dev/null >/dev/null 2>&1; sleep 0.3; echo two >/dev/tty; sleep 0.1; "
        "exit 5"
    )
    with container.terminal(["sh", "-c", script]) as terminal:
        assert b"".join(iter(terminal.read, b"")) == b"one\r\ntwo\r\n"
        assert terminal.wait(_WAIT_S) == 5


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # the child only exits
def test_a_forked_child_does_not_end_a_process_of_its_parent(container: hr.Container) -> None:
    sleeps = ["sleep", "300"]
    with (
        container.spawn(sleeps) as process,
        container.terminal(sleeps) as terminal,
        container.shell() as shell,
    ):
        shell.run("word=kept")
        child = os.fork()
        if child == 0:
            os._exit(0 if process.close() and terminal.close() and shell.close() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert (process.poll(), terminal.poll()) == (None, None)
        assert shell.run("echo $word").stdout == b"kept\n"


def test_a_closed_terminal_wakes_its_reader_and_its_writer(container: hr.Container) -> None:
    terminal = container.terminal(["sh", "-c", "stty raw -echo; sleep 300"])
    said: list[object] = []

    def write() -> None:
        try:
            terminal.write(bytes(1_000_000))
        except BrokenPipeError as error:
            said.append(error)

    threads = [
        threading.Thread(target=lambda: said.append(terminal.read())),
        threading.Thread(target=write),
    ]
    for thread in threads:
        thread.start()
    assert terminal.close()
    for thread in threads:
        thread.join(_WAIT_S)
    assert sorted(type(one).__name__ for one in said) == ["BrokenPipeError", "bytes"]
    assert terminal.close()


def test_no_descriptor_is_left_of_processes_and_terminals(container: hr.Container) -> None:
    def use() -> int:
        with container.spawn(["cat"], input=b"given") as given, container.spawn(["cat"]) as kept:
            assert given.wait(_WAIT_S).stdout == b"given"
            kept.close_stdin()
            assert kept.wait(_WAIT_S).exit_code == 0
        with container.terminal(["true"]) as terminal:
            terminal.wait(_WAIT_S)
        with pytest.raises(WorkdirNotFoundError):
            container.spawn(["true"], workdir="/no/such")
        return len(os.listdir("/proc/self/fd"))

    counts = [use() for _ in range(5)]
    assert wait_until(lambda: use() <= counts[1], _WAIT_S)


def test_the_deadline_and_the_output_limit_of_a_process_are_those_of_exec(
    container: hr.Container,
) -> None:
    script = "yes | head -c 100000; echo end; sleep 300"
    with container.spawn(["sh", "-c", script], timeout_s=2, output_limit_bytes=1000) as process:
        result = process.wait(_WAIT_S)
    assert (result.exit_code, result.timed_out, result.truncated) == (124, True, True)
    assert result.stdout.startswith(b"y\ny\n")
    assert result.stdout.endswith(b"end\n")


async def test_a_slots_processes_and_terminals_run_as_the_slot_and_end_with_its_lease(
    runtime: hr.Runtime, base_image: str
) -> None:
    config = hr.PoolConfig(spec=hr.ContainerSpec(image=base_image), max_containers=1)
    async with hr.SlotPool(runtime, config) as pool:
        async with pool.lease("one") as lease:
            facts = (await lease.exec(["sh", "-c", "id; pwd; echo $HOME"])).stdout
            process = await lease.spawn(["sh", "-c", "id; pwd; echo $HOME; exec sleep 300"])
            terminal = await lease.terminal(
                ["sh", "-c", "id; pwd; echo $HOME; exec sleep 300"], rows=5, cols=70
            )
            said = b""
            while said.replace(b"\r", b"") != facts:
                said += await terminal.aread(_WAIT_S)
            while process.stdout != facts:
                await asyncio.sleep(0.01)
        for ended in (process, terminal):
            assert isinstance(ended, (Process, Terminal))
            await asyncio.wait_for(ended.await_end(), _WAIT_S)
            await ended.aclose()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a container, with busybox."""
    busybox = find_program("busybox")
    assert busybox is not None
    (tmp_path / "busybox").write_bytes(Path(busybox).read_bytes())
    (tmp_path / "busybox").chmod(0o755)
    return tmp_path


@contextmanager
def inside(root: Path, *args: str) -> Iterator[HostProcess]:
    """Yield a process with this root."""
    process = spawn(["unshare", "--map-root-user", *args], stdin=PIPE)
    try:
        assert wait_until(lambda: os.readlink(f"/proc/{process.pid}/root") == str(root), _WAIT_S)
        yield process
    finally:
        kill_group(process)
        process.communicate()


@pytest.mark.parametrize("trap", ["link", "file"])
def test_the_host_opens_no_file_that_a_container_puts_in_place_of_its_terminals(
    root: Path, trap: str
) -> None:
    if trap == "link":
        (root / "dev").symlink_to("/dev")
    else:
        (root / "dev/pts").mkdir(parents=True)
        os.mkfifo(root / "dev/pts/ptmx")
    with (
        inside(root, "--root", str(root), "/busybox", "cat") as process,
        pytest.raises(OSError, match=r"dev|multiplexer"),
    ):
        open_pty(process.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_the_host_changes_no_file_that_a_container_puts_in_place_of_a_terminal(root: Path) -> None:
    """A program in a user namespace of its own builds a /dev/pts with the real multiplexer and
    other files.
    """
    for name in ("real", "dev/pts"):
        (root / name).mkdir(parents=True)
    (root / "dev/pts/ptmx").touch()
    victims = [root / "dev/pts" / str(number) for number in range(100)]
    for victim in victims:
        victim.touch()
        os.chown(victim, 12345, 12345)
    trick = (
        'cd "$0" && mount -t devpts -o newinstance,ptmxmode=0666 devpts real'
        " && mount --bind real/ptmx dev/pts/ptmx && exec chroot . /busybox cat"
    )
    with inside(root, "--mount", "sh", "-c", trick, str(root)) as process:
        ptmx = os.stat(f"/proc/{process.pid}/root/dev/pts/ptmx")
        assert ptmx.st_rdev == os.makedev(5, 2), "the trick must work"
        with suppress(OSError):  # refused, or the true terminal
            os.close(open_pty(process.pid).master)
        assert {victim.stat().st_uid for victim in victims} == {12345}


def test_a_process_that_takes_the_mark_of_a_terminal_gets_none(container: hr.Container) -> None:
    """Any process can lower its own hard limit to the mark of a later command."""
    thieves = """
import os, resource
marks = [line for line in open("/proc/self/limits") if line.startswith(("Max file locks", "Max resident set"))]
for number, name in ((10, "Max file locks"), (resource.RLIMIT_RSS, "Max resident set")):
    limit = resource.getrlimit(number)[1]
    if limit in (-1, resource.RLIM_INFINITY):
        continue
    step = 1 if number == 10 else 1024
    for taken in range(1, 100):
        if os.fork() == 0:
            resource.setrlimit(number, (limit - taken * step,) * 2)
            while True:
                import signal; signal.pause()
print("ready", flush=True)
import signal; signal.pause()
"""
    with container.spawn(["python3", "-c", thieves]) as process:
        assert wait_until(lambda: process.stdout == b"ready\n", _WAIT_S), process.stderr
        try:
            with pytest.raises(UnsupportedOptionError, match="mark"):
                container.terminal(["sleep", "300"])
        finally:
            container.exec(["pkill", "-KILL", "python3"])


def test_a_command_that_stops_its_starter_can_be_closed(container: hr.Container) -> None:
    process = container.spawn(["sh", "-c", "kill -STOP $PPID; echo ready; exec sleep 300"])
    assert wait_until(lambda: process.stdout == b"ready\n", _WAIT_S)
    assert process.close()
    assert process.wait(0).exit_code == 137
    assert container.exec(["echo", "more"]).stdout == b"more\n"


@pytest.mark.parametrize("how", ["it ends", "it closes its input"])
def test_a_blocked_writer_sees_that_nothing_reads_any_more(
    container: hr.Container, how: str
) -> None:
    closes = "exec 0<&-; " * (how == "it closes its input")
    with container.spawn(["sh", "-c", f"{closes}echo ready; exec sleep 300"]) as process:
        assert wait_until(lambda: process.stdout == b"ready\n", _WAIT_S)
        failed = threading.Event()

        def write() -> None:
            with pytest.raises(BrokenPipeError):
                process.write(bytes(4_000_000))
            failed.set()

        threading.Thread(target=write, daemon=True).start()
        if closes:
            assert failed.wait(_WAIT_S)
            assert process.poll() is None
            return
        process.interrupt()
        assert process.wait(_WAIT_S).exit_code == 130
        assert failed.wait(_WAIT_S)


def test_a_job_that_writes_for_ever_does_not_keep_a_terminal_open(container: hr.Container) -> None:
    marker = f"/tmp/again.{os.urandom(4).hex()}"
    job = f"while kill -0 $$; do sleep 0.01; done; exec 3>$T; : >{marker}; exec yes >&3"
    with container.terminal(
        ["sh", "-c", f"trap '' HUP; T=$(tty); ({job}) 2>/dev/null & echo kept"]
    ) as terminal:
        assert terminal.wait(_WAIT_S) == 0
        assert wait_until(lambda: container.exec(["test", "-e", marker]).exit_code == 0, _WAIT_S)
        said = list(islice(iter(lambda: terminal.read(_WAIT_S, limit_bytes=1024), b""), 1000))
        assert len(said) < 1000
        assert terminal.read(0) == b""


def test_nothing_of_a_terminal_waits_for_its_blocked_reader_or_writer(
    container: hr.Container,
) -> None:
    with container.terminal(["sh", "-c", "stty raw -echo; echo ready; exec sleep 300"]) as terminal:
        assert read_until(terminal, b"ready\n").endswith(b"ready\n")
        said: list[bool] = []

        def write() -> None:
            with suppress(BrokenPipeError):  # the interrupt ends the command
                terminal.write(bytes(1_000_000))

        def use() -> None:
            terminal.resize(9, 30)
            with pytest.raises(TimeoutError):
                terminal.read(0.01)
            said.append(terminal.interrupt())

        threads = [
            threading.Thread(target=work, daemon=True) for work in (write, terminal.read, use)
        ]
        for thread in threads[:2]:
            thread.start()
        assert wait_until(
            lambda: terminal._writing.locked() and terminal._reading.locked(), _WAIT_S
        )
        threads[2].start()
        for thread in threads[::-1]:
            thread.join(_WAIT_S)
            assert not thread.is_alive()
        assert said == [True]
        assert terminal.wait(_WAIT_S) == 130


def test_a_command_that_dies_before_it_has_its_terminal_says_so(
    container: hr.Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(pid: int, _: object) -> NoReturn:
        os.kill(pid, 9)
        raise FileNotFoundError(pid)

    def break_pipe(process: Process, _: bytes) -> NoReturn:
        process.signal(9)
        process.wait(_WAIT_S)
        raise BrokenPipeError

    before = len(os.listdir("/proc/self/fd"))
    for name, attribute, value in (
        ("terminal", "open_pty", die),
        ("process.Process", "write", break_pipe),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"hyperruntime.exec.spawn.{name}.{attribute}", value)
            with pytest.raises(ExecStartError, match="137"):
                container.terminal(["sleep", "300"])
    assert wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 8, _WAIT_S)
