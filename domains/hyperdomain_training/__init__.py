"""What domains share whose answers are trained in one container and measured in another.

``inside.py`` is the part that runs in the containers.
"""

from __future__ import annotations

import base64
import binascii
from importlib import resources

from hyperruntime.domain import Score, Task, TrialResult

__all__ = ["INSIDE", "decode", "inside_text", "invalid", "why"]

INSIDE = "hyperdomain_training/inside.py"  # in a container, without the rest of this package
_LINE = 300
_KILLED = (128 + 9, 128 + 24)  # by SIGKILL or SIGXCPU


def inside_text() -> str:
    """Return the module for the containers."""
    return (resources.files("hyperdomain_training") / "inside.py").read_text(encoding="utf-8")


def decode(printed: bytes) -> bytes | None:
    """Return the bytes that a line of base64 stands for; None if it is not valid."""
    try:
        return base64.b64decode(printed.strip(), validate=True)
    except binascii.Error:
        return None


def invalid(task: Task, detail: str) -> Score:
    """Return the score of an answer that has none."""
    return Score(task_id=task.id, value=0.0, valid=False, detail=detail)


def why(result: TrialResult, seconds: int) -> str:
    """Return why a program gave nothing: the limit that it reached, or the end of what it wrote.

    Args:
        result: the result of its trial.
        seconds: the processor seconds that it had.
    """
    if result.timed_out:
        return ": it did not end"
    if result.exit_code in _KILLED:
        return f": it used more than {seconds} processor seconds, or too much memory"
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return f": {lines[-1][:_LINE]}" if lines else ""
