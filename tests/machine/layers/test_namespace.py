"""Programs in a user namespace, and what is left when one of the processes around them is killed.

The programs are plain shells: bubblewrap is not needed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import attrs
import psutil
import pytest

from hyperruntime.errors import EngineUnavailableError
from hyperruntime.host.engine_program import ONE_ID
from hyperruntime.host.process import wait_until
from hyperruntime.layers.namespace import Job, Layers, Namespace, SandboxShell

LIMIT_S = 120.0


class Place:
    """A namespace, and the directory of its sandboxes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.namespace = Namespace("bubblewrap", ONE_ID)
        self.image = root / "image"
        self.image.mkdir()
        (self.image / "greeting").write_text("hello\n")

    def job(self, name: str, script: str, **fields: object) -> Job:
        files = self.root / name
        for directory in (files, files / "upper", files / "work", files / "at"):
            directory.mkdir()
        (self.root / f"{name}.json").write_text("{}")
        given = {
            "layers": Layers(
                directory=str(self.root),
                layers=("image",),
                upperdir=f"{files}/upper",
                workdir=f"{files}/work",
                at=f"{files}/at",
            ),
            **fields,
        }
        return Job(
            program="/bin/sh",
            args=("/bin/sh", "-c", script, str(files)),
            env={"PATH": os.defpath},
            directory=str(files),
            record=str(self.root / f"{name}.json"),
            **given,  # type: ignore[arg-type]
        )

    def left(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir() if path != self.image)

    def holder(self) -> psutil.Process:
        return psutil.Process(self.namespace.pid())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.namespace.close()


def output_of(shell: SandboxShell) -> bytes:
    os.set_blocking(shell.output, True)
    found = b""
    while chunk := shell.read():
        found += chunk
    return found


def test_a_program_changes_its_own_layer_and_its_files_go_with_it(place: Place) -> None:
    first = place.namespace.start(
        place.job("a", "cd $0/at; cat greeting; echo mine >greeting; rm -f other; cat; exit 7")
    )
    second = place.namespace.start(place.job("b", "cat $0/at/greeting; id -u; exit 0"))
    os.write(first.input, b"typed\n")
    first.close_input()
    assert output_of(first) == b"hello\ntyped\n"
    assert output_of(second) == b"hello\n0\n"
    assert (first.wait(LIMIT_S), second.wait(LIMIT_S)) == (7, 0)
    assert (place.image / "greeting").read_text() == "hello\n"
    assert wait_until(lambda: place.left() == [], LIMIT_S)


def test_many_threads_start_programs(place: Place) -> None:
    def run(number: int) -> bytes:
        shell = place.namespace.start(place.job(f"n{number}", f"cat $0/at/greeting; echo {number}"))
        found = output_of(shell)
        shell.close()
        shell.close_output()
        return found

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(run, range(60))) == [f"hello\n{n}\n".encode() for n in range(60)]
    assert wait_until(lambda: place.left() == [], LIMIT_S)


def test_a_killed_program_ends_with_its_files(place: Place) -> None:
    shell = place.namespace.start(place.job("a", "echo on; exec sleep 900"))
    os.set_blocking(shell.output, True)
    assert shell.read() == b"on\n"
    assert shell.wait(0.0) is None
    shell.close()
    assert shell.wait(0.0) == -9
    assert output_of(shell) == b""
    assert wait_until(lambda: place.left() == [], LIMIT_S)


def test_what_a_killed_program_began_ends_with_it(place: Place) -> None:
    """A `bwrap` that was killed while it started left a child that waited for ever."""
    shell = place.namespace.start(place.job("a", "sleep 900 & echo $!; exec sleep 900"))
    os.set_blocking(shell.output, True)
    child = psutil.Process(int(shell.read()))
    shell.close()
    assert wait_until(lambda: not is_live(child), LIMIT_S)


def test_many_threads_may_wait_for_one_end(place: Place) -> None:
    """The holder reports an exit code once."""
    for number in range(20):
        shell = place.namespace.start(place.job(f"n{number}", "read line; exit 7"))
        with ThreadPoolExecutor(4) as threads:
            waiting = [threads.submit(shell.wait, LIMIT_S) for _ in range(4)]
            shell.close_input()
            assert [one.result() for one in waiting] == [7] * 4


def test_a_failed_mount_ends_the_program_and_its_output_says_why(place: Place) -> None:
    missing = Layers(
        directory="/", layers=("/missing",), upperdir="/u", workdir="/w", at="/missing"
    )
    shell = place.namespace.start(place.job("a", "true", layers=missing))
    assert output_of(shell).startswith(b"[Errno 2] the mount of /missing: No such file")
    assert shell.wait(LIMIT_S) == 126
    shell = place.namespace.start(place.job("b", "echo works"))
    assert output_of(shell) == b"works\n"


def test_a_program_that_is_killed_before_it_starts_never_runs_on(place: Place) -> None:
    shells = [place.namespace.start(place.job(f"n{n}", "exec sleep 900")) for n in range(20)]
    for shell in shells:
        shell.close()
        assert shell.wait(0.0) == -9
    assert wait_until(lambda: place.left() == [], LIMIT_S)


def test_a_machine_without_user_namespaces_is_named(place: Place) -> None:
    refused = Namespace("bubblewrap", ("--user", "--map-users=junk"))
    with pytest.raises(EngineUnavailableError, match="no user namespace can be made: unshare: "):
        refused.pid()
    refused.close()


def test_the_programs_of_a_killed_holder_end_and_the_next_ones_have_another(place: Place) -> None:
    shell = place.namespace.start(place.job("a", "exec sleep 900"))
    holder = place.holder()
    programs = [holder, *holder.children(recursive=True)]
    holder.kill()
    assert shell.wait(LIMIT_S) is not None
    assert wait_until(lambda: not any(map(is_live, programs)), LIMIT_S)
    again = place.namespace.start(place.job("b", "echo again"))
    assert output_of(again) == b"again\n"


@pytest.mark.parametrize("copied", [False, True], ids=["alone", "with a forked child"])
def test_after_the_kill_of_an_owner_nothing_is_left(tmp_path: Path, copied: bool) -> None:
    """A forked child of the owner has copies of its sockets."""
    script = f"""
        import os, sys, time
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_namespace import Place
        place = Place(Path({str(tmp_path)!r}))
        shell = place.namespace.start(place.job("a", "echo on; exec sleep 900"))
        if {copied} and os.fork() == 0:
            time.sleep(900)
        print(place.namespace.pid(), flush=True)
        time.sleep(900)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, process_group=0
    )
    assert owner.stdout is not None
    holder = psutil.Process(int(owner.stdout.readline()))
    programs = [holder, *holder.children(recursive=True)]
    owner.kill()
    owner.wait()
    try:
        assert wait_until(lambda: not any(map(is_live, programs)), LIMIT_S)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["image"]
    finally:
        os.killpg(owner.pid, signal.SIGKILL) if copied else None
        owner.stdout.close()


def is_live(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_job_may_have_long_arguments(place: Place) -> None:
    job = place.job("a", "echo $#")
    words = ("x" * 100,) * 4000
    shell = place.namespace.start(attrs.evolve(job, args=(*job.args, *words), layers=None))
    assert output_of(shell) == b"4000\n"


def test_what_runs_goes_on_if_no_other_program_can_be_started(place: Place) -> None:
    """A fork bomb in one container took the holder, and so all containers, with it."""
    first = place.namespace.start(place.job("a", "echo on; read line; echo $line"))
    os.set_blocking(first.output, True)
    assert first.read() == b"on\n"
    holder = place.holder()
    for number in range(3):  # the starters that wait, and the next one
        for child in holder.children():
            with suppress(psutil.NoSuchProcess):
                if child.pid != programs_of(holder, first):
                    child.kill()
        assert wait_until(holder.is_running, LIMIT_S), number
    os.write(first.input, b"still here\n")
    assert output_of(first) == b"still here\n"
    again = place.namespace.start(place.job("b", "echo again"))
    assert output_of(again) == b"again\n"


def programs_of(holder: psutil.Process, shell: SandboxShell) -> int:
    """Return the pid of the program that has the other end of a shell's output."""
    inode = os.fstat(shell.output).st_ino
    for child in holder.children():
        with suppress(OSError):  # it has ended
            folder = f"/proc/{child.pid}/fd"
            links = [os.readlink(f"{folder}/{number}") for number in os.listdir(folder)]
            if f"pipe:[{inode}]" in links:
                return child.pid
    return 0


def test_an_owner_that_removed_the_record_first_does_not_end_the_holder(place: Place) -> None:
    for number in range(20):
        shell = place.namespace.start(place.job(f"n{number}", "true"))
        (place.root / f"n{number}.json").unlink()
        assert shell.wait(LIMIT_S) == 0
    assert wait_until(lambda: place.left() == [], LIMIT_S)
    shell = place.namespace.start(place.job("last", "echo works"))
    assert output_of(shell) == b"works\n"
