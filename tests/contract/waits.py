"""Helpers for tests on a busy machine."""

from __future__ import annotations

from collections.abc import Callable

from hyperruntime.spec import ExecResult

_TRIES = 5


def begun_in_time(attempt: Callable[[], ExecResult]) -> ExecResult:
    """Return the result of a command that writes at once and times out; retry if it timed out
    before it started.
    """
    for _ in range(_TRIES - 1):
        result = attempt()
        if result.stdout or not result.timed_out:
            return result
    return attempt()
