"""The library's logger: silent unless the program configures logging; structured if it configures
structlog.

An unconfigured structlog prints to standard output, which belongs to the embedding program. So an
event goes to structlog only if the program configured it, else to the standard ``logging``.
structlog takes long to import, so a program can pass its configuration to
:func:`configure_on_import`: this logger imports structlog for the first event that is shown.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_STRUCTLOG = "structlog"


class _OnImport(MetaPathFinder, Loader):
    """Configures structlog when it is imported: here, or by a plug-in that logs by itself."""

    def __init__(self) -> None:
        self.level: int | None = None  # the least that is shown; None: there is no configuration
        self._configure: Callable[[], None] = lambda: None
        self._loader: Loader | None = None

    def set(self, level: int, configure: Callable[[], None]) -> None:
        if _STRUCTLOG in sys.modules:
            configure()
            return
        self.level = level
        self._configure = configure
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def clear(self) -> None:
        self.level = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _STRUCTLOG else None
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._configure()
        self.clear()


_on_import = _OnImport()


def configure_on_import(level: int, configure: Callable[[], None]) -> None:
    """Configure structlog when it is imported, or now if it is imported already.

    This logger imports it for the first event that is shown.

    Args:
        level: the least level that is shown, of the standard ``logging``.
        configure: configures structlog; called once, in the thread that imports it.
    """
    _on_import.set(level, configure)


def forget_configuration() -> None:
    """Undo :func:`configure_on_import` if structlog has not been imported since; for tests."""
    _on_import.clear()


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
        if (least := _on_import.level) is not None:
            if level < least:
                return
            importlib.import_module(_STRUCTLOG)
        structlog = sys.modules.get(_STRUCTLOG)
        if structlog is not None and structlog.is_configured():
            getattr(structlog.get_logger(self._name), logging.getLevelName(level).lower())(
                event, **facts
            )
            return
        logger = logging.getLogger(self._name)
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "%s",
                " ".join([event, *(f"{name}={value!r}" for name, value in facts.items())]),
            )


def get_logger(name: str) -> Logger:
    """Return the logger of a module; its package is silent until it or the root logger has a
    handler.
    """
    package = logging.getLogger(name.partition(".")[0])
    if not any(isinstance(handler, logging.NullHandler) for handler in package.handlers):
        # without a handler, logging prints warnings on standard error
        package.addHandler(logging.NullHandler())
    return Logger(name)
