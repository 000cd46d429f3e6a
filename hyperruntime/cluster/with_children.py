"""``python -P -m hyperruntime.cluster.with_children MODULE``: run a module; when it has ended, end
all that it started.

It also removes the private directories of killed processes. ``TMPDIR`` of the module is a directory
of the job, because Parsl's ``multiprocessing`` leaves its sockets there if SIGTERM ends its
process.

Processes of a job whose parent was killed belong to init and outlive the job, unless the batch
system uses cgroups. This process adopts them instead. Source: prctl(2), PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from hyperruntime.cluster import with_parent
from hyperruntime.host.inherited import shell_environment
from hyperruntime.host.owner import owned_directory, remove_owned, stale_directories
from hyperruntime.host.process import python_args, spawn
from hyperruntime.host.rmtree import remove_tree

SCRATCH = "HYPERRUNTIME_NODE_SCRATCH"  # the variable with the node's directory for temporary files
# the variable with the time at which the job began, in seconds since 1970
JOB_BEGAN = "HYPERRUNTIME_JOB_BEGAN"
JOBS = "HYPERRUNTIME_JOBS"  # the variable with the head's directory for the files of jobs
TMPDIR = "HYPERRUNTIME_JOB_TMPDIR"  # the variable with the TMPDIR of the job; "" if it had none
NODE_NAME = "hyperrun-node"  # of the process of a node server, at most 15 bytes
_SET_CHILD_SUBREAPER = 36
_PAUSE_S = 0.05
_LOOK_S = 5.0
_SEEN_S = 10.0  # until a new directory is seen here
_GUARDS_S = 5.0  # for the guards of killed owners, which remove containers
_ALONE_S = 20.0  # after so long without a connection, Parsl's manager gets no answer any more
# for a node server to finish what it has after SIGTERM; the batch system kills it before
_NOTICE_S = 600.0


def _children() -> dict[int, str]:
    """Return the names of this process's children, by pid."""
    found = {}
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            found[child.pid] = child.name()
    return found


def _end_children(was_told: bool) -> None:
    """Wait for the children, then kill them, and those that this process then adopts, until there
    are none.
    """
    begin = guarded_since = time.monotonic()
    while True:
        children = _children()
        now = time.monotonic()
        if was_told and NODE_NAME in children.values() and now - begin < _NOTICE_S:
            guarded_since = now  # the guards have work when the node server is gone
        for pid in children if now - guarded_since > _GUARDS_S else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_PAUSE_S)


def _end_without_head(manager: int) -> None:
    """End Parsl's manager, and so the job, if its interchange ended before the first answer.

    If the head is killed while the job begins, the manager waits for that answer without a limit,
    and keeps the node.
    """
    alone_since = time.monotonic()
    while time.monotonic() - alone_since < _ALONE_S:
        time.sleep(_LOOK_S)
        try:
            if not _waits_alone(psutil.Process(manager)):
                alone_since = time.monotonic()
        except psutil.Error:  # it has ended
            return
    with suppress(ProcessLookupError):
        os.kill(manager, signal.SIGTERM)


def _waits_alone(manager: psutil.Process) -> bool:
    """Return whether a manager, which makes its worker before it connects, has no connection and no
    node server.
    """
    children = manager.children(recursive=True)
    for child in children:
        with suppress(psutil.Error):
            if child.name() == NODE_NAME:
                return False
    if not children:
        return False
    return all(each.status != psutil.CONN_ESTABLISHED for each in manager.net_connections("tcp"))


def main() -> int:
    """Run the module of the command line in a process that ends with this one; return its exit
    code.

    If the directory of jobs does not exist, nothing is run: its head was killed, and another head
    removed it. If it is removed a moment later, Parsl's manager makes it again; it is then removed
    at the end.
    """
    if not (jobs := os.environ.get(JOBS)):
        return _run()
    deadline = time.monotonic() + _SEEN_S
    while not os.path.isdir(jobs):
        if time.monotonic() > deadline:
            sys.stderr.write(
                f"the directory of jobs {jobs} is not seen here: its head has ended, or nodes "
                "do not share it; put it where all nodes see it\n"
            )
            return 1
        time.sleep(_PAUSE_S)
    # while it is open, no other directory gets its inode number
    opened = os.open(jobs, os.O_PATH | os.O_CLOEXEC)
    try:
        return _run()
    finally:
        with suppress(OSError):
            if not os.path.samestat(os.stat(jobs), os.fstat(opened)):
                remove_tree(jobs)


def restore_tmpdir() -> None:
    """Restore the job's own ``TMPDIR`` in this process, which the module started."""
    if (own := os.environ.pop(TMPDIR, None)) is None:
        return
    tempfile.tempdir = None
    os.environ["TMPDIR"] = own
    if not own:
        del os.environ["TMPDIR"]


def _run() -> int:
    with owned_directory(short=True) as temporary:
        return _run_in(temporary)


def _run_in(temporary: str) -> int:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    words = python_args("-m", with_parent.__name__, *sys.argv[1:])
    env = {
        **shell_environment(os.environ),
        TMPDIR: os.environ.get("TMPDIR", ""),
        "TMPDIR": temporary,
    }
    process = spawn(words, stdin=0, stdout=1, stderr=2, env=env)
    threading.Thread(target=_end_without_head, args=(process.pid,), daemon=True).start()
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
            _end_children(bool(noticed))
            for directory in stale_directories(
                Path(os.environ.get(SCRATCH) or tempfile.gettempdir())
            ):
                remove_owned(directory)
            return process.returncode & 0xFF


if __name__ == "__main__":
    sys.exit(main())
