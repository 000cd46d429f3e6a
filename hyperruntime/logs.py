"""The library's logger: silent in a program that configured no logging, structured in one that did.

An unconfigured structlog prints everything to standard output, which belongs to the program that embeds us.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog


class _Logger:
    """Hands each call to structlog where the program configured it, else to the standard ``logging``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._standard = structlog.wrap_logger(
            logging.getLogger(name),
            processors=[structlog.stdlib.filter_by_level, structlog.processors.KeyValueRenderer(key_order=["event"])],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    def __getattr__(self, method: str) -> Any:  # noqa: ANN401 - whatever the logger has
        return getattr(structlog.get_logger(self._name) if structlog.is_configured() else self._standard, method)


def get_logger(name: str) -> Any:  # noqa: ANN401 - structlog's own return type
    """Return a structlog-shaped logger; events are fixed phrases, facts are keyword arguments."""
    return _Logger(name)
