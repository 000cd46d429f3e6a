"""Processes and terminals beyond the conformance suite: small images, hostile programs, slots, and limits."""

from __future__ import annotations

import asyncio
import fcntl
import os
import termios
import threading
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import WorkdirNotFoundError
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.pty import open_pty
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.host.process import PIPE, find_program, kill_group, spawn, wait_until

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
        assert b"not found" in read_until(terminal, b"not found")
        assert terminal.wait(_WAIT_S) == 127


def test_a_program_cannot_type_into_another_terminal_or_keep_one_open(container: hr.Container) -> None:
    job = "(trap '' HUP; exec sleep 300) & echo ready"
    with container.terminal(["sh", "-c", job]) as terminal:
        assert read_until(terminal, b"\n") == b"ready\r\n"
        assert terminal.wait(_WAIT_S) == 0
        assert terminal.read() == b""  # although the job holds the terminal
    steal = "import fcntl, sys, termios\nfor c in 'id': fcntl.ioctl(open(sys.argv[1]), termios.TIOCSTI, c)"
    with container.terminal(["sleep", "300"]) as other:
        result = container.exec(["python3", "-c", steal, other.name])
        assert result.exit_code == 1  # it is not its terminal
        with pytest.raises(TimeoutError):
            other.read(0.2)


def test_a_program_may_leave_its_terminal_and_open_it_again(container: hr.Container) -> None:
    script = "echo one; exec </dev/null >/dev/null 2>&1; sleep 0.3; echo two >/dev/tty; sleep 0.1; exit 5"
    with container.terminal(["sh", "-c", script]) as terminal:
        assert b"".join(iter(terminal.read, b"")) == b"one\r\ntwo\r\n"
        assert terminal.wait(_WAIT_S) == 5


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # the child only exits
def test_a_forked_child_does_not_end_a_process_of_its_parent(container: hr.Container) -> None:
    with container.spawn(["sleep", "300"]) as process, container.terminal(["sleep", "300"]) as terminal:
        child = os.fork()
        if child == 0:
            os._exit(0 if process.close() and terminal.close() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert (process.poll(), terminal.poll()) == (None, None)


def test_a_closed_terminal_wakes_its_reader_and_its_writer(container: hr.Container) -> None:
    terminal = container.terminal(["sh", "-c", "stty raw -echo; sleep 300"])
    said: list[object] = []

    def write() -> None:
        try:
            terminal.write(bytes(1_000_000))
        except BrokenPipeError as error:
            said.append(error)

    threads = [threading.Thread(target=lambda: said.append(terminal.read())), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    assert terminal.close()
    for thread in threads:
        thread.join(_WAIT_S)
    assert sorted(type(one).__name__ for one in said) == ["BrokenPipeError", "bytes"]
    assert terminal.close()


def test_a_blocked_writer_of_a_process_sees_its_end(container: hr.Container) -> None:
    with container.spawn(["sleep", "300"]) as process:
        failed = threading.Event()

        def write() -> None:
            with pytest.raises(BrokenPipeError):
                process.write(bytes(4_000_000))
            failed.set()

        thread = threading.Thread(target=write)
        thread.start()
        process.interrupt()
        assert process.wait(_WAIT_S).exit_code == 130
        thread.join(_WAIT_S)
        assert failed.is_set()


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


def test_the_deadline_and_the_output_limit_of_a_process_are_those_of_exec(container: hr.Container) -> None:
    script = "yes | head -c 100000; echo end; sleep 300"
    with container.spawn(["sh", "-c", script], timeout_s=2, output_limit_bytes=1000) as process:
        result = process.wait(_WAIT_S)
    assert (result.exit_code, result.timed_out, result.truncated) == (124, True, True)
    assert result.stdout.startswith(b"y\ny\n")
    assert result.stdout.endswith(b"end\n")


def test_a_slots_processes_and_terminals_run_as_the_slot_and_end_with_its_lease(
    runtime: hr.Runtime, base_image: str
) -> None:
    async def scenario() -> None:
        config = hr.PoolConfig(spec=hr.ContainerSpec(image=base_image), max_containers=1)
        async with hr.SlotPool(runtime, config) as pool:
            async with pool.lease("one") as lease:
                facts = (await lease.exec(["sh", "-c", "id; pwd; echo $HOME"])).stdout
                process = await lease.spawn(["sh", "-c", "id; pwd; echo $HOME; exec sleep 300"])
                terminal = await lease.terminal(["sh", "-c", "id; pwd; echo $HOME; exec sleep 300"], rows=5, cols=70)
                said = b""
                while said.replace(b"\r", b"") != facts:
                    said += await terminal.aread(_WAIT_S)
                while process.stdout != facts:
                    await asyncio.sleep(0.01)
            for ended in (process, terminal):
                assert isinstance(ended, (Process, Terminal))
                await asyncio.wait_for(ended.await_end(), _WAIT_S)
                await ended.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("trap", ["link", "file"])
def test_the_host_opens_no_file_that_a_container_puts_in_place_of_its_terminals(tmp_path: Path, trap: str) -> None:
    busybox = find_program("busybox")
    assert busybox is not None
    (tmp_path / "busybox").write_bytes(Path(busybox).read_bytes())
    (tmp_path / "busybox").chmod(0o755)
    if trap == "link":
        (tmp_path / "dev").symlink_to("/dev")
    else:
        (tmp_path / "dev/pts").mkdir(parents=True)
        os.mkfifo(tmp_path / "dev/pts/ptmx")
    process = spawn(["unshare", "--map-root-user", "--root", str(tmp_path), "/busybox", "cat"], stdin=PIPE)
    try:
        assert wait_until(lambda: os.readlink(f"/proc/{process.pid}/root") == str(tmp_path), _WAIT_S)
        with pytest.raises(OSError, match=r"dev|multiplexer"):
            open_pty(process.pid)
    finally:
        kill_group(process)
        process.communicate()


def test_the_window_size_of_a_terminal_is_that_of_its_kernel_object(container: hr.Container) -> None:
    with container.terminal(["sleep", "300"], rows=7, cols=9) as terminal:
        terminal.resize(65535, 1)
        assert container.exec(["sh", "-c", 'stty size <"$1"', "sh", terminal.name]).stdout == b"65535 1\n"
        assert fcntl.ioctl(terminal._pty.master, termios.TIOCGWINSZ, bytes(8))[:4] == b"\xff\xff\x01\x00"
