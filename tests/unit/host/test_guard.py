"""The guard ends containers itself, waits for the programs that hold them, and calls the engine
until it succeeds.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hyperruntime.host.owner import start_guard
from hyperruntime.host.process import HostProcess, wait_until

_ENDS_S = 60.0
_NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount")


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Make a private directory with the directory of one container in it."""
    path = tmp_path / "hyperruntime-0-0123456789abcdef-01234567"
    (path / "hyperruntime-0123456789ab" / "x").mkdir(parents=True)
    return path


@pytest.fixture(autouse=True)
def _short_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the guard never wait longer than a fiftieth of a second."""
    (programs := tmp_path / "bin").mkdir()
    script = "#!/bin/sh\n[ $1 = 600 ] || set -- 0.02\nexec /bin/sleep $1\n"
    (programs / "sleep").write_text(script)
    (programs / "sleep").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def engine(log: Path, *exit_codes: int) -> tuple[str, ...]:
    """Return the argv of an engine that writes a line when it is called, with these exit codes,
    then 0.
    """
    script = (
        'echo called >>"$1"; set -- "$1" $(tail -n 1 "$1.codes"); sed -i "\\$d" "$1.codes"; '
        "exit ${2:-0}"
    )
    Path(f"{log}.codes").write_text("".join(f"{code}\n" for code in reversed(exit_codes)))
    return ("/bin/sh", "-c", script, "engine", str(log))


def calls(log: Path) -> int:
    return log.read_text().count("called") if log.exists() else 0


def let_go(guard: HostProcess) -> None:
    """Do for a guard what the owner's death does, and wait until it has ended."""
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(_ENDS_S) == 0


@contextmanager
def container(private: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that sees a mount of the container's directory, as those in containers do."""
    exchange = private / "hyperruntime-0123456789ab" / "x"
    script = 'mount --bind "$1" /mnt && echo up && exec sleep 600'
    args = [*_NAMESPACES, "sh", "-c", script, "sh", str(exchange)]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process
        finally:
            process.kill()


def test_the_processes_in_containers_are_killed_before_the_engine_is_called(
    private: Path, tmp_path: Path
) -> None:
    with container(private) as process:
        report = 'grep -s State: "/proc/$1/status" >"$2"; exit 0'
        said = tmp_path / "said"
        let_go(
            start_guard(
                str(private), ("/bin/sh", "-c", report, "engine", str(process.pid), str(said))
            )
        )
        # it was killed: it is a zombie, because nobody has reaped it yet
        assert "sleeping" not in said.read_text()
        assert process.wait(_ENDS_S) == -9
    assert not private.exists()


def test_the_processes_of_other_owners_live_on(private: Path, tmp_path: Path) -> None:
    other = tmp_path / "hyperruntime-0-fedcba9876543210-01234567"
    (other / "hyperruntime-0123456789ab" / "x").mkdir(parents=True)
    with container(other) as process:
        let_go(start_guard(str(private), ("true",)))
        assert process.poll() is None
    assert not private.exists()


def test_an_engine_that_fails_is_called_again_and_only_then_the_files_go(
    private: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    guard = start_guard(str(private), engine(log, 1, 125))
    let_go(guard)
    assert calls(log) == 3
    assert not private.exists()


def test_the_engine_is_called_again_while_a_program_may_start_a_container(
    private: Path, tmp_path: Path
) -> None:
    """The engine may not list its container before it has started."""
    log = tmp_path / "log"
    args = ["/bin/sh", "-c", "sleep 600; exit", "run", f"src={private}/hyperruntime-0123456789ab/x"]
    with subprocess.Popen(args, process_group=0) as process:
        guard = start_guard(str(private), engine(log))
        assert guard.stdin is not None
        guard.stdin.close()
        assert wait_until(lambda: calls(log) > 1, _ENDS_S)
        os.killpg(process.pid, 9)
        process.wait()
        assert guard.wait(_ENDS_S) == 0
    assert not private.exists()


@pytest.mark.slow
def test_a_program_that_only_names_a_container_delays_the_end_for_seconds(
    private: Path, tmp_path: Path
) -> None:
    args = ["/bin/sh", "-c", "sleep 600; exit", "tail", f"{private}/hyperruntime-0123456789ab/x"]
    with subprocess.Popen(args, process_group=0) as process:
        let_go(start_guard(str(private), engine(tmp_path / "log")))
        assert process.poll() is None
        os.killpg(process.pid, 9)
    assert not private.exists()


def test_an_engine_that_was_uninstalled_delays_nothing(private: Path) -> None:
    begin = time.monotonic()
    let_go(start_guard(str(private), ("/no/such/program",)))
    assert not private.exists()
    assert time.monotonic() - begin < _ENDS_S


def test_a_guard_that_is_dismissed_does_nothing(private: Path, tmp_path: Path) -> None:
    guard = start_guard(str(private), engine(tmp_path / "log"))
    assert guard.stdin is not None
    guard.stdin.write(b"done\n")
    let_go(guard)
    assert calls(tmp_path / "log") == 0
    assert private.exists()
