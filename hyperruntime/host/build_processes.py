"""End an image build through its inner processes, so that the build program can clean up.

A Podman build runs each step in a container that only the build knows. If the build is killed, the
processes, storage and directories of that container remain. If the step is killed instead, the
build fails and cleans up.
"""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

from hyperruntime.host.process import pid_namespace

_ROUND_S = 0.1


def end_build_processes(pid: int, timeout_s: float) -> None:
    """Kill a program's descendants in other pid namespaces until the program itself has ended.

    Args:
        pid: pid of the program, a child of this process.
        timeout_s: seconds to wait for its end; after that the caller must kill it.
    """
    deadline = time.monotonic() + timeout_s
    ours = pid_namespace()
    with suppress(psutil.Error):  # it has ended
        program = psutil.Process(pid)
        while program.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            for child in program.children(recursive=True):
                if pid_namespace(child.pid) not in (0, ours):
                    with suppress(psutil.Error):
                        child.kill()
            time.sleep(_ROUND_S)
