"""Frameworks that are killed: their containers must end."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from hyperruntime.host.process import wait_until

_PATIENCE_S = 60


def check_container_ends_with(program: str, engine_command: Any, *words: str) -> None:
    """Kill a program that uses a container, by SIGKILL; check that the container was there, and
    ends.

    Args:
        program: its text, in Python; it prints the name of the container, alone on a line, and then
            waits.
        engine_command: the witness for the engine.
        words: its arguments.
    """
    command = [sys.executable, "-W", "ignore", "-c", program, *words]
    killed = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    try:
        name = next(
            (line.strip() for line in killed.stdout if line.startswith("hyperruntime-")), ""
        )
        assert name, "the program ended before it named its container"
        assert name in engine_command.containers()
    finally:
        killed.kill()
        killed.wait()
        killed.stdout.close()
    assert wait_until(lambda: name not in engine_command.containers(), _PATIENCE_S)
