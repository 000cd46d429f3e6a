"""A pilot job ends all that its module started, whatever other processes of the machine begin and end meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

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
