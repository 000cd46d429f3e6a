"""The program behind which Apptainer builds: it can write to nothing of this machine but the given
directories.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperruntime.host.process import ProcessResult, run_process
from hyperruntime_apptainer import read_only_host

UNSHARE = shutil.which("unshare")


def can_make_namespaces() -> bool:
    return (
        UNSHARE is not None
        and run_process([UNSHARE, "--mount", "true"], timeout_s=60).exit_code == 0
    )


# An ordinary user cannot write to these paths in any case.
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not can_make_namespaces(),
    reason="only root with the right to make mount namespaces",
)


def confined(given: Path, script: str) -> ProcessResult:
    """Run a script behind the program."""
    args = [
        sys.executable,
        "-I",
        "-S",
        read_only_host.__file__,
        str(given),
        "--",
        "/bin/sh",
        "-c",
        script,
    ]
    return run_process(args, cwd="/", timeout_s=60)


def writable(given: Path, *paths: str | Path) -> list[bool]:
    """Return which of the paths a confined program can write to."""
    tests = (
        f"if test -w {shlex.quote(str(path))}; then echo yes; else echo no; fi" for path in paths
    )
    done = confined(given, "\n".join(tests))
    assert done.exit_code == 0, done.stderr
    return [line == "yes" for line in done.stdout.decode().split()]


@pytest.fixture
def other_process() -> Iterator[int]:
    """Yield the id of a process of root outside of the namespace."""
    with subprocess.Popen(["/bin/sleep", "300"]) as process:
        yield process.pid
        process.kill()


def test_root_writes_only_to_the_given_directory_and_to_files_of_its_own_process(
    tmp_path: Path,
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    assert writable(given, given, "/proc/self/comm", tmp_path, "/etc") == [True, True, False, False]
    assert (
        confined(
            given, 'echo x >"$0/file" && echo name >/proc/self/comm'.replace("$0", str(given))
        ).exit_code
        == 0
    )


def test_root_cannot_change_the_kernel(tmp_path: Path) -> None:
    names = [
        "sys/kernel/core_pattern",
        "sysrq-trigger",
        "irq",
        "irq/default_smp_affinity",
        "bus",
        "fs",
        "mtrr",
    ]
    paths = [Path("/proc", name) for name in names if Path("/proc", name).exists()]
    assert Path("/proc/sys/kernel/core_pattern") in paths
    assert writable(tmp_path, *paths) == [False] * len(paths)
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    assert confined(tmp_path, "cat /proc/sys/kernel/core_pattern").stdout.decode() == pattern


def test_root_does_not_reach_other_file_systems_by_the_root_of_a_process(
    tmp_path: Path, other_process: int
) -> None:
    assert os.access(f"/proc/{other_process}/root{tmp_path}", os.W_OK)
    assert confined(tmp_path, "exit 3").exit_code == 3
    ways = [f"/proc/{other_process}/{way}" for way in ("root", f"root{tmp_path}", "cwd")]
    assert writable(tmp_path, *ways) == [False, False, False]


def test_the_program_ends_with_the_process_that_waits_for_it(tmp_path: Path) -> None:
    args = [
        sys.executable,
        "-I",
        "-S",
        read_only_host.__file__,
        str(tmp_path),
        "--",
        "/bin/sh",
        "-c",
    ]
    with subprocess.Popen([*args, "echo started; exec sleep 300"], stdout=subprocess.PIPE) as waits:
        assert waits.stdout is not None
        assert waits.stdout.readline() == b"started\n"
        waits.kill()
        assert waits.communicate(timeout=60)[0] == b"", "sleep has the pipe open for 300 s"
