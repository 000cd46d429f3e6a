"""End a program that runs others in namespaces of their own, so that it can tidy up after them.

A build by Podman runs each step in a container that it alone knows. Killed at once it leaves that container's
processes, its storage and its directories behind. When the step is killed instead, the build fails and cleans up.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil

_ROUND_S = 0.1


def end_inner(pid: int, timeout_s: float) -> None:
    """Kill what a program started in pid namespaces of its own, until the program has ended by itself.

    Args:
        pid: of a child of this process. timeout_s: how long it may take; then it is left to be killed.
    """
    deadline, ours = time.monotonic() + timeout_s, _namespace(os.getpid())
    while _runs(pid) and time.monotonic() < deadline:
        for child in _below(pid):
            if _namespace(child.pid) not in ("", ours):
                with suppress(psutil.Error):  # it may be gone by now
                    child.kill()
        time.sleep(_ROUND_S)


def _runs(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _below(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
