"""Read and end processes that may end by themselves at any moment."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from contextlib import suppress

import psutil


def end(processes: Iterable[psutil.Process], number: int = signal.SIGKILL) -> None:
    """Send a signal to those of the processes that are still there."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def command_line(process: psutil.Process) -> list[str]:
    """Return the arguments of a process; none once it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []
