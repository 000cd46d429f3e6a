"""What a command says beside its result: on standard error."""

from __future__ import annotations

import time

import click

from hyperruntime.errors import HyperRuntimeError


class WrongUsageError(HyperRuntimeError):
    """What the user asked for cannot be, and the sentence says what can."""

    exit_code = 2


def note(text: str) -> None:
    """Print one line for people on standard error."""
    click.echo(text, err=True)


class Lines:
    """Hands on an engine's progress lines, indented, with the time they came at."""

    def __init__(self) -> None:
        """Start the clock."""
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print a line, unless it is empty."""
        if text := line.strip():
            note(f"  {time.monotonic() - self._started:6.1f}s  {text[:200]}")
