"""Configure structlog: readable lines or JSON lines on standard error. No other module imports
it.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from hyperruntime.cli.streams import without_colour
from hyperruntime.logs import configure_on_import

if TYPE_CHECKING:
    from structlog.typing import Processor


def configure_logging(level: str, *, as_json: bool) -> None:
    """Send log lines of ``level`` and above to standard error; those of other packages only with
    ``debug``.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        as_json: whether to print JSON lines.
    """
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
