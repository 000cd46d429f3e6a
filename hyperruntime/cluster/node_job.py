"""``python -P -m hyperruntime.cluster.node_job FILE.json``: the job of a node, to its end.

It runs a node server, ends what that left, and writes ``FILE.end``. Processes whose parent was
killed would belong to init and outlive the job, unless the batch system uses cgroups; this process
adopts them instead.

Source: prctl(2), PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import psutil

from hyperruntime.cluster.config import SCRATCH
from hyperruntime.errors import ClusterError, HyperRuntimeError
from hyperruntime.host.owner import remove_owned, stale_directories
from hyperruntime.host.process import wait_until
from hyperruntime.settings.reader import read
from hyperruntime.storage.atomic import write_atomic

_SET_CHILD_SUBREAPER = 36
_SEEN_S = 10.0  # until a new file is seen here
_PAUSE_S = 0.05
_GUARDS_S = 5.0  # for the guards of killed owners, which remove containers


def main() -> int:
    """Run the node server of the file on the command line; return the exit code of the job."""
    path = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: _end(path, 143, "cancelled"))
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    code = 1
    how = "failed"
    try:
        how = _serve(path)
        code = 0
    except HyperRuntimeError as error:
        sys.stderr.write(f"{error}\n")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_children()
        for directory in stale_directories(Path(os.environ.get(SCRATCH) or tempfile.gettempdir())):
            remove_owned(directory)
        _write_end(path, code, how)
    return code


def _serve(path: Path) -> str:
    """Serve the head until it is gone; return how the job ends."""
    from hyperruntime.cluster.head import Invitation
    from hyperruntime.cluster.node_server import ToldToEndError, run_node
    from hyperruntime.cluster.node_services import NodeSettings

    if not wait_until(path.exists, _SEEN_S):
        raise ClusterError(
            f"{path} is not seen here: its head has ended, or nodes do not share the directory; "
            "put it where all nodes see it"
        )
    needs: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    invitation = read(Invitation, needs["invitation"], path="invitation")
    if not invitation.name:
        invitation = attrs.evolve(invitation, name=path.stem)
    settings = read(NodeSettings, needs["settings"], path="settings")
    try:
        asyncio.run(run_node(invitation, settings))
    except ToldToEndError:
        return "cancelled"
    return "done"


def _end(path: Path, code: int, how: str) -> None:
    """End before the node server has taken SIGTERM over: nothing runs yet."""
    _write_end(path, code, how)
    os._exit(code)


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
