"""The library's logger: silent unless the program configures logging; structured if it configures structlog.

An unconfigured structlog prints to standard output, which belongs to the embedding program. So an event goes to
structlog only if the program configured it, else to the standard ``logging``. structlog is not imported here.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable


class _Deferred:
    """A configuration of logging that no event has needed yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._level = logging.DEBUG
        self._configure: Callable[[], None] | None = None

    def set(self, level: int, configure: Callable[[], None]) -> None:
        with self._lock:
            self._level, self._configure = level, configure

    def carry_out(self, level: int) -> None:
        """Configure logging if there is a configuration that shows events of this level."""
        if self._configure is None or level < self._level:
            return
        with self._lock:
            if self._configure is not None:
                self._configure()
                self._configure = None


_deferred = _Deferred()


def configure_when_needed(level: int, configure: Callable[[], None]) -> None:
    """Have logging configured before the first event that it would show: structlog takes long to import.

    Args:
        level: the least level that is shown, of the standard ``logging``.
        configure: called once, in the thread of that event, or at once if structlog is imported already.
    """
    _deferred.set(level, configure)
    configure_if_imported()


def configure_if_imported() -> None:
    """Carry out a pending configuration if structlog has been imported, as a plug-in may do to log by itself."""
    if "structlog" in sys.modules:
        _deferred.carry_out(logging.CRITICAL)


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
        _deferred.carry_out(level)
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
