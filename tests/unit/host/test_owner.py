"""The identity of an owner, whether it is alive, and the files that a failed owner must not
leave.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import attrs
import pytest

from hyperruntime.driver import ContainerRecord
from hyperruntime.errors import StorageError
from hyperruntime.host.owner import (
    LABEL,
    Owner,
    OwnerIdentity,
    make_short_directory,
    owned_directory,
    remove_owned,
    stale_directories,
)
from hyperruntime.host.process import is_alive, process_start_ticks
from hyperruntime.runtime import Runtime
from hyperruntime.testing.driver import FakeDriver


class DriverWithoutContainers(FakeDriver):
    """A driver with which ``prune`` removes no containers of other tests."""

    def containers(self) -> tuple[ContainerRecord, ...]:
        return ()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty directory for temporary files."""
    path = tmp_path / "t"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


@pytest.fixture
def short_root() -> Iterator[str]:
    """Make an empty directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as path:
        yield path


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "alive"),
        ({"host": "renamed since"}, "alive"),
        ({"start_ticks": 1}, "dead"),
        ({"pid": 2**22 + 1}, "dead"),
        ({"pid": 2**70}, "dead"),
        ({"pid": -1}, "dead"),
        ({"boot_id": "another"}, "dead"),
        ({"boot_id": "another", "host": "another"}, "elsewhere"),
        ({"pid_namespace": 1}, "elsewhere"),
        ({"boot_id": ""}, "elsewhere"),
    ],
)
def test_an_owner_is_alive_dead_or_elsewhere(change: dict[str, object], state: str) -> None:
    us = attrs.asdict(OwnerIdentity.current())
    assert OwnerIdentity.from_record({**us, **change}).state() == state


def test_labels_and_records_describe_the_same_owner() -> None:
    us = OwnerIdentity.current()
    assert OwnerIdentity.from_labels(us.to_labels()) == us
    assert OwnerIdentity.from_record(json.loads(json.dumps(attrs.asdict(us)))) == us
    assert us.state() == "alive"


def test_an_owner_with_a_start_time_by_the_clock_is_never_considered_dead() -> None:
    labels = {
        LABEL: "x",
        f"{LABEL}.host": os.uname().nodename,
        f"{LABEL}.pid": "4194303",
        f"{LABEL}.start": "1.0",
    }
    identity = OwnerIdentity.from_labels(labels)
    assert identity is not None
    assert identity.state() == "elsewhere"


@pytest.mark.parametrize(
    "labels",
    [{}, {"other": "x"}, {LABEL: "x"}, {LABEL: "x", f"{LABEL}.host": "h", f"{LABEL}.pid": "?"}],
)
def test_incomplete_labels_give_no_owner(labels: dict[str, str]) -> None:
    assert OwnerIdentity.from_labels(labels) is None


def test_the_start_of_a_process_is_counted_from_the_boot() -> None:
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 < ticks / os.sysconf("SC_CLK_TCK") <= uptime_s
    assert is_alive(os.getpid(), ticks)
    assert not is_alive(os.getpid(), ticks + 1)


def test_a_zombie_and_a_reaped_process_are_dead() -> None:
    process = subprocess.Popen(["sleep", "60"])
    ticks = process_start_ticks(process.pid)
    assert ticks is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process.pid, ticks)
    process.wait()
    assert not is_alive(process.pid, ticks)


def test_a_process_of_another_user_is_alive() -> None:
    ticks = process_start_ticks(1)
    assert ticks is not None
    assert is_alive(1, ticks)


@pytest.mark.parametrize("at", ["reap", "remove_owned"])
def test_the_guard_removes_the_directory_of_an_interrupted_close(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    owner = Owner(("true",), OwnerIdentity.current())
    with monkeypatch.context() as patch:
        patch.setattr(f"hyperruntime.host.owner.{at}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            owner.close()
    end(owner)
    assert list(temporary.iterdir()) == []


def test_the_guard_removes_files_that_a_thread_adds_during_a_close(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(("true",), OwnerIdentity.current())
    with monkeypatch.context() as patch:
        patch.setattr(
            "hyperruntime.host.owner.remove_owned", lambda *_, **__: None
        )  # simulates a removal that does nothing
        owner.close()
    end(owner)
    assert list(temporary.iterdir()) == []


def end(owner: Owner) -> None:
    """Wait until the guard of an owner ends, as it does after the owner's process ended."""
    if (stdin := owner._guard.stdin) is not None:
        stdin.close()
    owner._guard.wait(60)


def test_an_owner_that_cannot_start_leaves_no_files(temporary: Path) -> None:
    too_much = ("x" * 3_000_000,)
    with pytest.raises(StorageError, match="no guard can be started"):
        Owner(too_much, OwnerIdentity.current())
    assert list(temporary.iterdir()) == []


def test_a_temporary_directory_that_is_not_utf8_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(odd)
    monkeypatch.setattr("tempfile.tempdir", odd)
    with pytest.raises(StorageError, match="set HYPERRUNTIME_SCRATCH"):
        Owner(("true",), OwnerIdentity.current())
    assert os.listdir(odd) == []


@pytest.mark.parametrize(
    "wish", ["", "relative", "/no/such/directory", "/tmp/a b", "/tmp/" + "x" * 60]
)
def test_a_short_directory_has_a_short_plain_path_in_any_environment(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", wish)
    owner = Owner(("true",), OwnerIdentity.current())
    directory = make_short_directory(owner.private_dir)
    assert len(directory) < 80
    assert directory.startswith("/tmp/hyperruntime-")
    assert os.stat(directory).st_mode & 0o777 == 0o700
    owner.close()
    assert not os.path.exists(directory)
    assert list(temporary.iterdir()) == []


def test_directories_of_killed_processes_are_found_and_those_of_living_ones_are_not(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, short_root: str
) -> None:
    # where `prune` of another process does not look
    monkeypatch.setenv("XDG_RUNTIME_DIR", short_root)
    script = (
        "import os, tempfile\n"
        f"tempfile.tempdir = {str(temporary)!r}\n"
        "from hyperruntime.host.owner import owned_directory\n"
        "with owned_directory() as one, owned_directory(short=True) as two:\n"
        "    print(one, two, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = set(killed.stdout.decode().split())
    with owned_directory() as ours, owned_directory(short=True) as short:
        found = {str(path) for path in stale_directories()}
        assert left <= found
        assert not {ours, short} & found
    assert not os.path.exists(ours)
    for path in left:
        Path(path, "owner.json").unlink()
        os.rmdir(path)


def test_a_directory_whose_owner_is_killed_while_it_removes_it_is_found(temporary: Path) -> None:
    script = (
        "import os, pathlib, tempfile\n"
        f"tempfile.tempdir = {str(temporary)!r}\n"
        "from hyperruntime.host.owner import owned_directory\n"
        "unlink, unlinked = os.unlink, []\n"
        "def counted(*args, **options):\n"
        "    unlink(*args, **options)\n"
        "    unlinked.append(args)\n"
        "    if len(unlinked) == 20:\n"
        "        os.kill(os.getpid(), 9)\n"
        "os.unlink = counted\n"
        "with owned_directory() as place:\n"
        "    for number in range(20):\n"
        "        pathlib.Path(place, str(number)).touch()\n"
        "    print(place, flush=True)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = Path(killed.stdout.decode().strip())
    assert left in stale_directories()
    remove_owned(left)
    assert not left.exists()


def test_prune_removes_a_directory_while_a_process_writes_into_it(temporary: Path) -> None:
    left = temporary / f"hyperruntime-{os.getuid()}-left"
    writer = (
        "import itertools, sys\nfor n in itertools.count(): open(f'{sys.argv[1]}/{n}', "
        "'w').close()\n"
    )
    left.mkdir()
    (left / "owner.json").write_text(
        json.dumps(attrs.asdict(OwnerIdentity.current()) | {"pid": 2**22 + 1})
    )
    with subprocess.Popen(
        [sys.executable, "-c", writer, str(left)], stderr=subprocess.DEVNULL
    ) as process:
        while not (left / "99").exists():
            time.sleep(0.01)
        Timer(0.5, process.kill).start()
        with Runtime(DriverWithoutContainers()) as runtime:
            assert str(left) in runtime.prune()
    assert not left.exists()


def test_a_child_forked_during_a_registration_can_open_its_own_owner() -> None:
    script = (
        "import os, signal\n"
        "from hyperruntime.host import owner\n"
        "first = owner.Owner(('true',), owner.OwnerIdentity.current())\n"
        "with owner._fork_hook:\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        signal.alarm(10)\n"
        "        owner.Owner(('true',), owner.OwnerIdentity.current()).close()\n"
        "        first.close()\n"
        "        os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert os.path.isdir(first.private_dir)\n"
        "assert first._guard.poll() is None\n"
        "first.close()\n"
        "assert not os.path.exists(first.private_dir)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
