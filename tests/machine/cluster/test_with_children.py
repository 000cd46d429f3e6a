"""A pilot job ends all that its module started, whatever other processes of the machine begin and
end meanwhile.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from hyperruntime.cluster import with_children
from hyperruntime.host.process import run_process, spawn, wait_until

NO_PIPES: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)

LEAVES_ONE = """
import subprocess, sys
sleep = "['sleep', '1000'], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
inner = f"import subprocess; print(subprocess.Popen({sleep}).pid)"
print(subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True).stdout, flush=True)
"""


def test_orphans_of_the_module_are_ended(tmp_path: Path) -> None:
    (tmp_path / "leaves_one.py").write_text(LEAVES_ONE)
    words = [sys.executable, "-m", with_children.__name__, "leaves_one"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), with_children.SCRATCH: str(tmp_path)}
    done = run_process(words, timeout_s=120, env=env)
    assert done.exit_code == 0, done
    assert not psutil.pid_exists(int(done.stdout.split()[0]))


LEAVES_SOCKETS = """
import multiprocessing, os, signal, tempfile
from hyperruntime.cluster import with_children
manager = multiprocessing.Manager()
print(manager.address, flush=True)
with_children.restore_tmpdir()
print(tempfile.gettempdir(), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_sockets_of_a_module_that_sigterm_ends_are_removed(tmp_path: Path) -> None:
    (tmp_path / "leaves_sockets.py").write_text(LEAVES_SOCKETS)
    (own := tmp_path / "own").mkdir()
    words = [sys.executable, "-m", with_children.__name__, "leaves_sockets"]
    env = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        with_children.SCRATCH: str(tmp_path),
        "TMPDIR": str(own),
    }
    done = run_process(words, timeout_s=120, env=env)
    address, restored = done.stdout.decode().splitlines()
    assert not Path(address).parent.parent.exists()
    assert restored == str(own)
    assert list(own.iterdir()) == []


WAITS = """
import socket, subprocess, sys, threading
sleeper = subprocess.Popen(["sleep", "1000"])
head = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
head.recv(1)
head.close()
threading.Event().wait()
"""


def test_a_job_whose_head_is_gone_before_it_answers_ends(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    (tmp_path / "soon.py").write_text(
        "import sys\nfrom hyperruntime.cluster import with_children\n"
        "with_children._ALONE_S, with_children._LOOK_S = 1.0, 0.1\nsys.exit(with_children.main())\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{os.getcwd()}",
        with_children.SCRATCH: str(tmp_path),
    }
    with socket.create_server(("127.0.0.1", 0)) as head:
        words = [sys.executable, str(tmp_path / "soon.py"), "waits", str(head.getsockname()[1])]
        job = spawn(words, env=env, **NO_PIPES)
        connection, _ = head.accept()
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(3)  # three times the limit
        connection.close()
        assert job.wait(120) != 0


def test_a_job_that_begins_after_its_head_was_killed_runs_nothing_and_leaves_no_directory(
    tmp_path: Path,
) -> None:
    jobs = tmp_path / "jobs"
    (tmp_path / "makes.py").write_text(
        "import pathlib, shutil\njobs = "
        f"pathlib.Path({str(jobs)!r})\nprint('runs')\nshutil.rmtree(jobs) if (jobs / "
        "'removed').exists() else None\n(jobs / 'logs').mkdir(parents=True)\n"
    )
    words = [sys.executable, "-m", with_children.__name__, "makes"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), with_children.SCRATCH: str(tmp_path)}
    env[with_children.JOBS] = str(jobs)
    late = run_process(words, timeout_s=120, env=env)
    assert (late.exit_code, late.stdout, jobs.exists()) == (1, b"", False)
    assert b"is not seen here" in late.stderr
    jobs.mkdir()
    usual = run_process(words, timeout_s=120, env=env)
    assert (usual.exit_code, usual.stdout, (jobs / "logs").exists()) == (0, b"runs\n", True)
    (jobs / "removed").touch()  # by another head, while Parsl's manager starts
    assert run_process(words, timeout_s=120, env=env).exit_code == 0
    assert not jobs.exists()


def test_children_are_listed_while_other_processes_end() -> None:
    """Directories in /proc vanish between two looks; the list must be complete all the same."""
    mine, ends = spawn(["sleep", "1000"], **NO_PIPES), threading.Event()

    def others() -> None:
        while not ends.is_set():
            spawn(["true"], **NO_PIPES).wait()

    threads = [threading.Thread(target=others) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(50):
            assert with_children._children()[mine.pid] == "sleep"
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        mine.kill()
        mine.wait()
    assert wait_until(lambda: mine.pid not in with_children._children(), 120)
