"""``python -m hyperruntime.cluster.with_children MODULE``: run a module; when it has ended, end all that it started.

Processes of a job whose parent was killed belong to init and outlive the job, unless the batch system uses cgroups.
This process adopts them instead. Source: prctl(2), PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from hyperruntime.cluster import with_parent
from hyperruntime.host.process import spawn

_SET_CHILD_SUBREAPER = 36
_PAUSE_S = 0.05


def _children() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found


def _end_children() -> None:
    """Kill all children, and the children that this process then adopts, until there are none."""
    while True:
        for pid in _children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_PAUSE_S)


def main() -> int:
    """Run the module of the command line in a process that ends with this one; return its exit code."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    words = [sys.executable, "-m", with_parent.__name__, *sys.argv[1:]]
    process = spawn(words, stdin=0, stdout=1, stderr=2, env=os.environ)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            _end_children()
            return process.returncode & 0xFF


if __name__ == "__main__":
    sys.exit(main())
