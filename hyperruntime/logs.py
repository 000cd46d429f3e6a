"""The library's logger: silent in a program that configured no logging, structured in one that did.

An unconfigured structlog prints everything to standard output, which belongs to the program that embeds us. So an
event goes to structlog only in a program that configured it, else to the standard ``logging``. structlog itself is
imported by whoever configures it.
"""

from __future__ import annotations

import logging
import sys


class Logger:
    """Takes a fixed phrase and facts as keyword arguments."""

    def __init__(self, name: str) -> None:
        """Log under a name; nothing is configured or imported."""
        self._name = name

    def debug(self, event: str, **facts: object) -> None:
        """Tell what helps to find a fault."""
        self._emit(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: object) -> None:
        """Tell what happened."""
        self._emit(logging.INFO, event, facts)

    def warning(self, event: str, **facts: object) -> None:
        """Tell what went wrong and was dealt with."""
        self._emit(logging.WARNING, event, facts)

    def error(self, event: str, **facts: object) -> None:
        """Tell what went wrong."""
        self._emit(logging.ERROR, event, facts)

    def _emit(self, level: int, event: str, facts: dict[str, object]) -> None:
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            getattr(structlog.get_logger(self._name), logging.getLevelName(level).lower())(event, **facts)
            return
        logger = logging.getLogger(self._name)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", " ".join([event, *(f"{name}={value!r}" for name, value in facts.items())]))


def get_logger(name: str) -> Logger:
    """Return the logger of a module; its package is silent until a program gives it, or the root logger, a handler."""
    package = logging.getLogger(name.partition(".")[0])
    if not any(isinstance(handler, logging.NullHandler) for handler in package.handlers):
        package.addHandler(logging.NullHandler())  # without it the standard library prints warnings on standard error
    return Logger(name)
