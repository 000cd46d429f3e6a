"""``python -P -m hyperruntime.cluster.node_job FILE.json``: the job of a node, to its end.

The process of the job, its *root*, starts the node server as a child, and waits. Then it ends what
that left, and writes ``FILE.end``. So a node server that is killed, such as by the kernel for its
memory, leaves nothing: processes whose parent was killed would belong to init and outlive the job,
unless the batch system uses cgroups; the root adopts them instead. If the root is killed, the node
server ends as after SIGTERM.

Source: prctl(2), PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from hyperruntime.errors import ClusterError, HyperRuntimeError
from hyperruntime.host.owner import remove_owned, stale_directories
from hyperruntime.host.process import wait_until
from hyperruntime.settings.reader import read
from hyperruntime.storage.atomic import write_atomic

_SET_CHILD_SUBREAPER = 36
_SET_PARENT_DEATH_SIGNAL = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1)
_CANCELLED = 128 + signal.SIGTERM
_SEEN_S = 10.0  # until a new file is seen here
_PAUSE_S = 0.05
_GUARDS_S = 5.0  # for the guards of killed owners, which remove containers


def main() -> int:
    """Run the node server of the file on the command line; return the exit code of the job."""
    path = Path(sys.argv[1])
    try:
        needs = _read(path)
    except HyperRuntimeError as error:
        _say(str(error))
        _write_end(path, 1, "failed")
        return 1
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until both processes have handlers
    root = os.getpid()
    server = os.fork()
    if server == 0:
        os._exit(_child(needs, root))
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: _signal(server, number))
    signal.signal(signal.SIGHUP, lambda *_: _signal(server, signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, which also sends it to the child
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    code = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    for number in _PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
    _end_children()
    if code < 0:
        _say(f"the node server was killed by signal {-code}; what it left is removed")
        _remove_rest(needs["settings"]["runtime"])
        code = 128 - code
    for directory in stale_directories():
        remove_owned(directory)
    _write_end(path, code, {0: "done", _CANCELLED: "cancelled"}.get(code, "failed"))
    return code


def _child(needs: dict[str, Any], root: int) -> int:
    """Be the node server; return its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_CANCELLED))  # nothing runs yet
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(_CANCELLED))
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    code = 1
    try:
        if os.getppid() == root:  # else it was killed before this asked for a signal
            code = _CANCELLED if _serve(needs) == "cancelled" else 0
    except HyperRuntimeError as error:
        _say(str(error))
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    finally:
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_IGN)
        if os.getppid() != root:
            _end_children()
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def _signal(server: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(server, number)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _remove_rest(runtime: str) -> None:
    """Remove what an engine still lists of the node server, which was killed, perhaps with its
    guards.
    """
    from hyperruntime.runtime import open_runtime

    try:
        with open_runtime(runtime) as there:
            there.prune()
    except HyperRuntimeError as error:
        _say(str(error))
    _end_children()


def _read(path: Path) -> dict[str, Any]:
    """Read the file with the token, and remove it.

    Raises:
        ClusterError: it is not seen here.
    """
    if not wait_until(path.exists, _SEEN_S):
        raise ClusterError(
            f"{path} is not seen here: its head has ended, or nodes do not share the directory; "
            "put it where all nodes see it"
        )
    needs: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    needs["invitation"]["name"] = needs["invitation"]["name"] or path.stem
    return needs


def _serve(needs: dict[str, Any]) -> str:
    """Serve the head until it is gone; return how the job ends."""
    from hyperruntime.cluster.head import Invitation
    from hyperruntime.cluster.node_server import ToldToEndError, run_node
    from hyperruntime.cluster.node_services import NodeSettings

    invitation = read(Invitation, needs["invitation"], path="invitation")
    settings = read(NodeSettings, needs["settings"], path="settings")
    try:
        asyncio.run(run_node(invitation, settings))
    except ToldToEndError:
        return "cancelled"
    return "done"


def _write_end(path: Path, code: int, how: str) -> None:
    with suppress(OSError, HyperRuntimeError):  # the head has removed the directory
        if path.parent.is_dir():
            write_atomic(path.with_suffix(".end"), json.dumps({"code": code, "how": how}).encode())


def _end_children() -> None:
    """Wait for the children, then kill them, and those that this process then adopts, until there
    are none.
    """
    begin = time.monotonic()
    while True:
        is_late = time.monotonic() - begin > _GUARDS_S
        for child in psutil.Process().children() if is_late else ():
            with suppress(psutil.Error):
                child.kill()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
