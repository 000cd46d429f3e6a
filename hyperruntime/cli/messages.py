"""Print messages on standard error, beside a command's result: notes, and log lines of structlog,
which no other module imports.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from hyperruntime.cli.streams import without_colour
from hyperruntime.errors import HyperRuntimeError

if TYPE_CHECKING:
    from structlog.typing import Processor


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


def configure_logging(level: str, *, as_json: bool) -> None:
    """Send log lines of ``level`` and above to standard error; those of other packages only with
    ``debug``.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        as_json: whether to print JSON lines.
    """
    from hyperruntime.logs import configure_on_import

    number = getattr(logging, level.upper())
    configure_on_import(number, lambda: _configure(number, as_json=as_json))
    root = logging.getLogger()
    if level != "debug" and not root.handlers:
        # else other packages, such as asyncio, print tracebacks by themselves
        root.addHandler(logging.NullHandler())


def _configure(level: int, *, as_json: bool) -> None:
    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
            *_renderers(as_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Looked up for each line: a test or a progress display may replace sys.stderr. A line is
        # one write, so that a display cannot join it with a message of another thread.
        logger_factory=lambda *args: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _renderers(as_json: bool) -> tuple[Processor, ...]:
    import structlog

    if as_json:
        return (
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        )
    coloured = sys.stderr.isatty() and not without_colour()
    return (structlog.dev.ConsoleRenderer(colors=coloured, pad_event_to=0),)
