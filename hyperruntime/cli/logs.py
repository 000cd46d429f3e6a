"""Configure structlog: readable lines or JSON lines on standard error. No other module configures it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from structlog.typing import Processor


def configure_logging(level: str, *, as_json: bool) -> None:
    """Send log lines of ``level`` and above to standard error.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        as_json: whether to print JSON lines.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
            *_renderers(as_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # Looked up for each line: a test or a progress display may replace sys.stderr.
        logger_factory=lambda *args: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _renderers(as_json: bool) -> tuple[Processor, ...]:
    if as_json:
        return (structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str))
    return (structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0),)
