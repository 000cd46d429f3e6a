"""The library's logger: silent unless the program configures logging; structured if it configures structlog.

An unconfigured structlog prints to standard output, which belongs to the embedding program. So an event goes to
structlog only if the program configured it, else to the standard ``logging``. structlog is not imported here.
"""

from __future__ import annotations

import logging
import sys


class Logger:
    """Logs events: a fixed phrase, with facts as keyword arguments."""

    def __init__(self, name: str) -> None:
        """Set the logger's name; nothing is configured or imported."""
        self._name = name

    def debug(self, event: str, **facts: object) -> None:
        """Log an event that helps to find a fault."""
        self._emit(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: object) -> None:
        """Log a normal event."""
        self._emit(logging.INFO, event, facts)

    def warning(self, event: str, **facts: object) -> None:
        """Log a problem that was handled."""
        self._emit(logging.WARNING, event, facts)

    def error(self, event: str, **facts: object) -> None:
        """Log a problem that was not handled."""
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
    """Return the logger of a module; its package is silent until it or the root logger has a handler."""
    package = logging.getLogger(name.partition(".")[0])
    if not any(isinstance(handler, logging.NullHandler) for handler in package.handlers):
        package.addHandler(logging.NullHandler())  # without a handler, logging prints warnings on standard error
    return Logger(name)
