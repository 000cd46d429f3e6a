"""Print messages on standard error, beside a command's result."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time

import click

from hyperruntime.errors import HyperRuntimeError


class WrongUsageError(HyperRuntimeError):
    """The request is invalid; the message says what is allowed."""

    exit_code = 2


def note(text: str) -> None:
    """Print one line for the user on standard error, above a display that is there.

    ``click.echo(err=True)`` would write past the display: it bypasses a stream that has no encoding
    of its own.
    """
    click.echo(text, file=sys.stderr)


def own_program() -> str:
    """Return how the user can call ``hyperrun`` again: its name, or its path if it is not on PATH,
    as under pipx.
    """
    folder, called = os.path.split(sys.argv[0])
    beside = os.path.join(folder, "hyperrun")
    if (
        shutil.which("hyperrun")
        or called not in ("hyperrun", "hyperruntime")
        or not os.path.isfile(beside)
    ):
        return "hyperrun"
    return shlex.quote(beside)


class Lines:
    """Prints an engine's progress lines, each indented and with the seconds since the start."""

    def __init__(self) -> None:
        """Start the clock."""
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print a line, unless it is empty."""
        if text := line.strip():
            note(f"  {time.monotonic() - self._started:6.1f}s  {text[:200]}")
