"""``python -m hyperruntime.cluster.with_children MODULE``: run a module; when it has ended, end all that it started.

Directories of processes that were killed are removed, too.

Processes of a job whose parent was killed belong to init and outlive the job, unless the batch system uses cgroups.
This process adopts them instead. Source: prctl(2), PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from hyperruntime.cluster import with_parent
from hyperruntime.host.owner import stale_directories
from hyperruntime.host.process import spawn
from hyperruntime.host.rmtree import remove_tree

SCRATCH = "HYPERRUNTIME_NODE_SCRATCH"  # the variable with the node's directory for temporary files
_SET_CHILD_SUBREAPER = 36
_PAUSE_S = 0.05
_GUARDS_S = 5.0  # for the guards of killed owners, which remove containers
_NOTICE_S = 600.0  # for a node server to finish what it has after SIGTERM; the batch system kills it before


def _children() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found


def _end_children(patience_s: float) -> None:
    """Wait for the children, then kill them, and those that this process then adopts, until there are none."""
    patient_until = time.monotonic() + patience_s
    while True:
        for pid in _children() if time.monotonic() > patient_until else ():
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
    noticed: list[int] = []

    def notice(number: int, _: object) -> None:
        noticed.append(number)
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, notice)
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            _end_children(_NOTICE_S if noticed else _GUARDS_S)
            for directory in stale_directories(Path(os.environ.get(SCRATCH) or tempfile.gettempdir())):
                remove_tree(directory)
            return process.returncode & 0xFF


if __name__ == "__main__":
    sys.exit(main())
